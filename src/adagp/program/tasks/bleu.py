"""BLEU, as sacrebleu computes it."""

from collections.abc import Sequence

from adagp.data.vocabulary import require


def corpus_bleu(translations: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Return the BLEU score (0 to 100) of plain text, one reference a sentence, and the signature that repeats it."""
    require("sacrebleu")
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    score = metric.corpus_score(list(translations), [list(references)])
    return float(score.score), str(metric.get_signature())

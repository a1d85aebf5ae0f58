"""Your own training loop with predicted gradients: clipping, a learning-rate schedule, micro-batches.

python examples/own_loop.py
"""

import torch
import torch.nn.functional as F
from torch import nn

import adagp
from adagp.data import load_images

EPOCHS, BATCH = 12, 64


def main() -> None:
    """Train a small net on the embedded digits."""
    torch.manual_seed(0)
    digits = load_images("digits")
    inputs = torch.from_numpy(digits.x_train).float().permute(0, 3, 1, 2) / 16
    targets = torch.from_numpy(digits.y_train)

    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    print(adagp.validate(model, optimizer))  # which layers are predicted, and what happens to the rest

    trainer = adagp.attach(model, optimizer, length=adagp.Epochs(EPOCHS, len(inputs) // BATCH))  # the one line
    for epoch in range(EPOCHS):
        order = torch.randperm(len(inputs))
        for chosen in order.split(BATCH)[: trainer.batches_per_epoch]:
            with trainer.batch() as batch:  # batch.phase: warmup, bp or gp
                halves = chosen.chunk(2)
                for place, half in enumerate(halves):
                    loss = F.cross_entropy(model(inputs[half]), targets[half]) / len(halves)
                    batch.backward(loss, more=place + 1 < len(halves))
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                batch.step()
        scheduler.step()
        print(f"epoch {epoch + 1:>2} {trainer.schedule.label(epoch):<8} loss {loss.item() * 2:.4f}")

    with torch.no_grad():
        test = torch.from_numpy(digits.x_test).float().permute(0, 3, 1, 2) / 16
        right = (model(test).argmax(1) == torch.from_numpy(digits.y_test)).float().mean()
    print(f"test accuracy {right:.4f}")


if __name__ == "__main__":
    main()

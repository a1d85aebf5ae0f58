"""Embedded DRAM of three-transistor cells beside SRAM: what an access, idling and a refresh cost.

Ratios are those of Kelle (Xia, Zhang: MICRO 2025, Table 1: 4 MB at 65 nm, Destiny): an access takes 84.8 / 185.9 of an
SRAM's energy, leakage is 154 / 415, area 3.2 / 7.3. SRAM is adagp's energy table. CAMEL's own energies are not in the text
at hand.
"""

from dataclasses import dataclass

from adagp.hw.energy import Technology, sram

ACCESS, LEAKAGE, AREA = 84.8 / 185.9, 154 / 415, 3.2 / 7.3
"""Embedded DRAM over SRAM of the same size."""


TECHNOLOGY = Technology()


@dataclass(frozen=True)
class OnChipMemory:
    """A memory on the chip. Embedded DRAM is refreshed by a read and a write of what lives in it."""

    kilobytes: float
    embedded_dram: bool
    technology: Technology = TECHNOLOGY

    @property
    def bits(self) -> float:
        """How much it holds."""
        return self.kilobytes * 8192

    def access(self, bits: float) -> float:
        """Return the joules of reading or writing so many bits."""
        entry = sram(self.technology, self.kilobytes)
        return bits * entry.read / entry.bits * 1e-12 * (ACCESS if self.embedded_dram else 1.0)

    def refresh(self, bits: float, times: int) -> float:
        """Return the joules of refreshing so many live bits."""
        return 2 * times * self.access(bits) if self.embedded_dram else 0.0

    def leakage(self, seconds: float) -> float:
        """Return the joules of idling."""
        watts = sram(self.technology, self.kilobytes).leakage * 1e-3
        return watts * seconds * (LEAKAGE if self.embedded_dram else 1.0)

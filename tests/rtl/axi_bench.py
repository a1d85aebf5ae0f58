"""Runs inside a simulator, by cocotb: drives `axi_chip` from its manifest alone, with random pauses on every channel.

The job is a file of JSON, whose path is in AXI_JOB: the manifest, programs, matrices to load, matrices to find afterwards, and
what off-chip memory holds before and after.
"""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, with_timeout
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp, AxiStreamBus, AxiStreamSink, AxiStreamSource

JOB: dict[str, Any] = json.loads(Path(os.environ["AXI_JOB"]).read_text())
ABOUT = JOB["manifest"]["axi"]
STARTED, LOADED, STORED = (1 << ABOUT["control_bits"][name] for name in ("start", "load", "store"))


def pauses(seed: int) -> Iterator[bool]:
    drawn = random.Random(seed)
    while True:
        yield drawn.random() < 0.4


class Driver:
    """What a driver of the chip does."""

    def __init__(self, top: Any) -> None:
        clock = {"reset_active_level": False}
        self.top = top
        self.bus = AxiLiteMaster(AxiLiteBus.from_prefix(top, "s_axil"), top.aclk, top.aresetn, **clock)
        self.source, self.sink = (
            kind(AxiStreamBus.from_prefix(top, name), top.aclk, top.aresetn, byte_lanes=1, **clock)
            for kind, name in ((AxiStreamSource, "s_axis"), (AxiStreamSink, "m_axis"))
        )
        read, write = self.bus.read_if, self.bus.write_if
        channels = (write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel)
        for seed, channel in enumerate((*channels, self.source, self.sink)):
            channel.set_pause_generator(pauses(seed))

    async def reset(self) -> None:
        Clock(self.top.aclk, 10, "ns").start()
        self.top.aresetn.value = 0
        for _ in range(3):
            await RisingEdge(self.top.aclk)
        self.top.aresetn.value = 1
        await RisingEdge(self.top.aclk)

    async def write(self, register: str | int, value: int, answer: AxiResp = AxiResp.OKAY) -> None:
        address = ABOUT["registers"][register] if isinstance(register, str) else register
        written = await self.bus.write(address, value.to_bytes(4, "little"))
        assert written.resp == answer, (register, value)

    async def read(self, register: str) -> int:
        answer = await self.bus.read(ABOUT["registers"][register], 4)
        assert answer.resp == AxiResp.OKAY
        return int.from_bytes(answer.data, "little")

    async def finished(self, what: int) -> None:
        """Wait for the interrupt, check that it is for `what`, and clear it."""
        if not self.top.irq.value:
            await with_timeout(RisingEdge(self.top.irq), 10, "ms")
        assert await self.read("interrupt_pending") == what
        await self.write("interrupt_pending", what)
        assert await self.read("interrupt_pending") == 0
        assert not self.top.irq.value

    async def program(self, core: int, instructions: list[int]) -> None:
        window = ABOUT["program"]
        slices = -(-JOB["manifest"]["cores"][core]["instruction_bits"] // 32)
        for place, word in enumerate(instructions):
            address = window["base"] + core * window["core_bytes"] + place * window["instruction_bytes"]
            for slice_ in range(slices):
                await self.write(address + 4 * slice_, word >> 32 * slice_ & 0xFFFFFFFF)

    async def point(self, matrix: dict[str, Any]) -> None:
        for name in ("core", "memory", "address", "lines", "words"):
            await self.write(name, matrix[name])

    async def load(self, matrix: dict[str, Any]) -> None:
        await self.point(matrix)
        await self.source.send(matrix["content"])
        await self.write("control", LOADED)
        await self.finished(LOADED)
        assert await self.read("status") == 1 << ABOUT["status_bits"]["halted"]

    async def store(self, matrix: dict[str, Any]) -> list[int]:
        await self.point(matrix)
        await self.write("control", STORED)
        frame = await self.sink.recv(compact=False)
        await self.finished(STORED)
        return list(frame.tdata)


async def memory(top: Any, words: list[int]) -> None:
    """Off-chip memory that does one thing at a time, takes its time, and checks that nothing valid is taken back."""
    drawn = random.Random(9)

    async def wait(most: int) -> None:
        for _ in range(drawn.randrange(most)):
            await FallingEdge(top.aclk)

    while True:
        await FallingEdge(top.aclk)
        for name in ("write", "read"):
            if not getattr(top, f"off_chip_{name}").value:
                continue
            address = int(getattr(top, f"off_chip_{name}_address").value)
            await wait(4)
            assert getattr(top, f"off_chip_{name}").value
            assert int(getattr(top, f"off_chip_{name}_address").value) == address
            getattr(top, f"off_chip_{name}_ready").value = 1
            if name == "write":
                words[address] = int(top.off_chip_out.value)
            await FallingEdge(top.aclk)
            getattr(top, f"off_chip_{name}_ready").value = 0
            if name == "read":
                await wait(4)
                top.off_chip_in.value, top.off_chip_in_valid.value = words[address], 1
                assert top.off_chip_in_ready.value
                await FallingEdge(top.aclk)
                top.off_chip_in_valid.value = 0
            break


@cocotb.test()
async def batch_on_the_bus(top: Any) -> None:
    driver, words = Driver(top), list(JOB["off_chip"]["before"])
    if words:
        for name in ("read_ready", "write_ready", "in_valid", "in"):
            getattr(top, f"off_chip_{name}").value = 0
        cocotb.start_soon(memory(top, words))
    await driver.reset()
    assert await driver.read("status") == 1 << ABOUT["status_bits"]["halted"]
    await driver.write("interrupt_enable", STARTED | LOADED | STORED)
    for core, program in enumerate(JOB["programs"]):
        await driver.program(core, program)
    for matrix in JOB["loads"]:
        await driver.load(matrix)
    await driver.write("control", STARTED)
    await what_is_rejected(driver, running=True)
    await driver.finished(STARTED)
    assert await driver.read("cycles") >= JOB["least_cycles"]
    for matrix in JOB["stores"]:
        assert await driver.store(matrix) == matrix["content"], matrix["name"]
    assert words == JOB["off_chip"]["after"]
    await what_is_rejected(driver, running=False)
    await a_misplaced_end(driver, JOB["loads"][0])


async def what_is_rejected(driver: Driver, *, running: bool) -> None:
    """Accesses that the chip cannot serve are answered with an error, and change nothing."""
    rejected = AxiResp.SLVERR
    window, core = ABOUT["program"], JOB["manifest"]["cores"][0]
    if running:
        assert await driver.read("status") == 0
        await driver.write("control", STARTED, rejected)
        await driver.write("control", LOADED, rejected)
        await driver.write("lines", 1, rejected)
        await driver.write(window["base"], 0, rejected)
        return
    await driver.write("status", 0, rejected)
    await driver.write("control", 0, rejected)
    await driver.write("control", STARTED | LOADED, rejected)
    await driver.write("memory", 4, rejected)
    await driver.write("core", len(JOB["manifest"]["cores"]), rejected)
    await driver.write(max(ABOUT["registers"].values()) + 4, 0, rejected)
    if -(-core["instruction_bits"] // 32) < window["instruction_bytes"] // 4:
        await driver.write(window["base"] + window["instruction_bytes"] - 4, 0, rejected)
    await driver.write("words", 0)
    await driver.write("control", STORED, rejected)
    half = await driver.bus.write(ABOUT["registers"]["words"], b"\x01\x00")
    assert half.resp == rejected
    assert await driver.read("words") == 0
    assert (await driver.bus.read(window["base"], 4)).resp == rejected


async def a_misplaced_end(driver: Driver, matrix: dict[str, Any]) -> None:
    """A stream whose last word comes too early is taken to its end, and status reports it."""
    await driver.point(matrix)
    await driver.write("control", LOADED)
    content = matrix["content"]
    await driver.source.send(content[:1])
    await driver.source.send(content[1:])
    await driver.finished(LOADED)
    bits = ABOUT["status_bits"]
    assert await driver.read("status") == 1 << bits["halted"] | 1 << bits["misplaced_last"]

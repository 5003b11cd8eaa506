"""Reads ELF files without running anything: what a library needs, exports and links to, and the kernels of a cubin.

64-bit little-endian files only, which is all that the compilers here write. Raises ValueError for anything else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_SHT_DYNAMIC, _SHT_DYNSYM, _SHT_SYMTAB = 6, 11, 2
_DT_NEEDED = 1
_STT_FUNC = 2
_STO_CUDA_ENTRY = 0x10
"""Bit of st_other that CUDA's compiler sets for __global__ functions."""


@dataclass(frozen=True)
class Symbol:
    """One entry of a symbol table."""

    name: str
    kind: int
    other: int
    section: int
    """0: undefined."""


class Elf:
    """An ELF file in memory."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        self._data = data
        (offset,) = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        try:
            self._sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
        except struct.error:
            raise ValueError("the section table of the ELF file is cut off") from None

    @classmethod
    def read(cls, path: Path) -> Elf:
        """The file at `path`."""
        return cls(path.read_bytes())

    def _text(self, strings: int, offset: int) -> str:
        start = self._sections[strings][4] + offset
        return self._data[start : self._data.index(b"\0", start)].decode("utf-8", "replace")

    def _symbols(self, kind: int) -> list[Symbol]:
        found = []
        for section in self._sections:
            if section[1] != kind:
                continue
            for at in range(section[4], section[4] + section[5], 24):
                name, info, other, index = struct.unpack_from("<IBBH", self._data, at)
                found.append(Symbol(self._text(section[6], name), info & 15, other, index))
        return [symbol for symbol in found if symbol.name]

    def undefined(self) -> list[str]:
        """Names that other libraries have to provide, without versions."""
        return [symbol.name for symbol in self._symbols(_SHT_DYNSYM) if symbol.section == 0]

    def exported(self) -> list[str]:
        """Names that the library provides."""
        return [symbol.name for symbol in self._symbols(_SHT_DYNSYM) if symbol.section != 0]

    def needed(self) -> list[str]:
        """Names of the libraries that are loaded with this one."""
        return [
            self._text(section[6], value)
            for section in self._sections
            if section[1] == _SHT_DYNAMIC
            for tag, value in struct.iter_unpack("<QQ", self._data[section[4] : section[4] + section[5]])
            if tag == _DT_NEEDED
        ]

    def kernels(self) -> list[str]:
        """Mangled names of the __global__ functions of a cubin, in the order of its symbol table."""
        return [
            symbol.name
            for symbol in self._symbols(_SHT_SYMTAB)
            if symbol.kind == _STT_FUNC and symbol.other & _STO_CUDA_ENTRY and symbol.section != 0
        ]

"""Imports every family of instructions, so that the table is full. A new family file is named here and nowhere else."""

from ptxgen.isa.rows import approximate as approximate
from ptxgen.isa.rows import async_copy as async_copy
from ptxgen.isa.rows import atomic as atomic
from ptxgen.isa.rows import compare as compare
from ptxgen.isa.rows import control as control
from ptxgen.isa.rows import convert as convert
from ptxgen.isa.rows import extended as extended
from ptxgen.isa.rows import floating as floating
from ptxgen.isa.rows import half as half
from ptxgen.isa.rows import integer as integer
from ptxgen.isa.rows import logic as logic
from ptxgen.isa.rows import matrix as matrix
from ptxgen.isa.rows import memory as memory
from ptxgen.isa.rows import move as move
from ptxgen.isa.rows import warp as warp

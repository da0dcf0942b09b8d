"""Imports every family of instructions, so that the table is full. A new family file is named here and nowhere else."""

from ptxgen.isa import approximate as approximate
from ptxgen.isa import async_copy as async_copy
from ptxgen.isa import atomic as atomic
from ptxgen.isa import compare as compare
from ptxgen.isa import control as control
from ptxgen.isa import convert as convert
from ptxgen.isa import extended as extended
from ptxgen.isa import floating as floating
from ptxgen.isa import half as half
from ptxgen.isa import integer as integer
from ptxgen.isa import logic as logic
from ptxgen.isa import matrix as matrix
from ptxgen.isa import memory as memory
from ptxgen.isa import move as move
from ptxgen.isa import warp as warp

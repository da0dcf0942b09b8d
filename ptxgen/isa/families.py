"""Imports every family of instructions, so that the table is full. A new family file is named here and nowhere else."""

from ptxgen.isa import arithmetic as arithmetic
from ptxgen.isa import control as control
from ptxgen.isa import memory as memory
from ptxgen.isa import move as move

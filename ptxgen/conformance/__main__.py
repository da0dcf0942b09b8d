"""`python -m ptxgen.conformance [NAME]...`: the same as `ptxgen conform`."""

import sys

from ptxgen.commands.cli import main

main(["conform", *sys.argv[1:]], prog_name="ptxgen")

"""What a kernel costs and why: registers, occupancy, bounds, loops, machine code; as a report and as a page."""

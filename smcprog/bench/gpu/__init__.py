"""``smcprog bench gpu``: forwards and rounds on a device, each figure next to its roofline."""

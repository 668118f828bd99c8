"""Search a policy's settings on some traffic, judge the chosen one on other traffic."""

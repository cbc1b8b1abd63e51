"""Makes up input for every door of ckptcheck, and holds against each input what must be true of any."""

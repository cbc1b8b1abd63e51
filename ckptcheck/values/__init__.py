"""Every value of a checkpoint, looked at once, at the speed of memory. numpy is enough; torch is not needed."""

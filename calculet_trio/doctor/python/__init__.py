"""The interpreter and the libraries, against the bounds that this program was released with."""

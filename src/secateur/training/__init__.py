"""The engine: compiled training that stops by itself and survives being killed."""

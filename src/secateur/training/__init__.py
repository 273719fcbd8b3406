"""The engine: compiled training that stops by itself and can be resumed after being killed."""

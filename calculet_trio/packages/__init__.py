"""Packages: manifest, store, pull, GGUF reading, ONNX graphs."""

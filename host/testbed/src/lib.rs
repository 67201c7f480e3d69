//! A live emulated network from a topology file.

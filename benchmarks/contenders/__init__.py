"""The contenders: one module per library. Other libraries run in their own environment, without fieldwise."""

"""The saved model: format, prediction, recommendation, warm start, export."""

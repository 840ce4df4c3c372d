"""What notebooks show of objects: small tables in HTML, frames for pandas, pictures by Matplotlib (extra `plots`)."""

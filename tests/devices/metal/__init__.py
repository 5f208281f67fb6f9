"""Metal's language on the processor: what is translated is compiled by clang, with a header that stands for Metal's."""

// The smallest program: output, and a value.
text("hello from a sandbox");
const squares = [1, 2, 3].map((n) => n * n);
squares;

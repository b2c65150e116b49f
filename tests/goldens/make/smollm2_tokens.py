"""Token ids of SmolLM2-135M-Instruct for a few hundred texts, by a byte-pair encoder written here from the papers.

    pip install gguf==0.19.0 regex
    python smollm2_tokens.py SmolLM2-135M-Instruct.Q4_1.gguf ../smollm2_tokens.json

Independent of the `tokenizers` library: words are cut with llama.cpp's expressions for `tokenizer.ggml.pre = smollm`
(each digit alone, then GPT-2's cuts inside the rest), and merged pair by pair with the lowest rank first (Sennrich et al.
2016, arXiv:1508.07909). Bytes that the vocabulary lacks give no token, as in llama.cpp and transformers.
"""

import json
import random
import sys

import regex
from gguf import GGUFReader

DIGIT = regex.compile(r"\p{N}")
GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
CONTROL = 3


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, n = {}, 0
    for byte in range(256):
        if byte in keep:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + n)
            n += 1
    return table


class Encoder:
    def __init__(self, path):
        fields = GGUFReader(path).fields
        assert fields["tokenizer.ggml.model"].contents() == "gpt2"
        assert fields["tokenizer.ggml.pre"].contents() == "smollm"
        tokens = fields["tokenizer.ggml.tokens"].contents()
        types = fields["tokenizer.ggml.token_type"].contents()
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {tuple(m.split(" ")): i for i, m in enumerate(fields["tokenizer.ggml.merges"].contents())}
        control = [token for token, kind in zip(tokens, types) if kind == CONTROL]
        # The longest first: `<repo_name>` is no prefix of another one, but that is luck.
        self.control = regex.compile("|".join(regex.escape(t) for t in sorted(control, key=len, reverse=True)))
        self.alphabet = byte_alphabet()

    def encode(self, text):
        ids, end = [], 0
        for match in self.control.finditer(text):
            ids += self.plain(text[end : match.start()])
            ids.append(self.ids[match.group()])
            end = match.end()
        return ids + self.plain(text[end:])

    def plain(self, text):
        ids = []
        for piece in self.around_digits(text):
            for word in GPT2.findall(piece):
                ids += self.merge([self.alphabet[b] for b in word.encode()])
        return ids

    def around_digits(self, text):
        end = 0
        for match in DIGIT.finditer(text):
            if match.start() > end:
                yield text[end : match.start()]
            yield match.group()
            end = match.end()
        if end < len(text):
            yield text[end:]

    def merge(self, symbols):
        while len(symbols) > 1:
            pairs = [(self.ranks.get(pair, 1 << 60), i) for i, pair in enumerate(zip(symbols, symbols[1:]))]
            rank, i = min(pairs)
            if rank == 1 << 60:
                break
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        return [self.ids[s] for s in symbols if s in self.ids]


FIXED = [
    "", " ", "  ", "\n", "\n\n", "\t\t x", "a", " a", "a ", "Hello, world!", "hello world  hello   world    ",
    "The year 2024 had 366 days; 3.14159, 1e-5, 0x1F, 1,000,000 and 12345678901234567890.",
    "in 7 days", "7", "77 777 7777", "a1b2c3", "½ ² ③ Ⅷ ٣ ७ 五", "Version 1.2.3-rc.4", "15:30–16:45", "+49 (0)30 1234-56",
    "don't can't I'll we've they're he's I'd DON'T", "naïve café Ærøskøbing Straße", "Привет, мир! Как дела?",
    "你好,世界。今天天气很好!", "こんにちは、世界。カタカナもひらがなも漢字も。", "안녕하세요 세계", "สวัสดีชาวโลก", "مرحبا بالعالم", "שלום עולם",
    "🙂", "👩‍👩‍👧‍👦 family", "🇩🇪🇫🇷 flags", "👍🏽 thumbs", "text🙂text 🙂 text", "e\u0301 vs é", "\u200bzero\u200dwidth\u00a0nbsp",
    "def f(x):\n    return x ** 2  # square\n\n\tif True:\n\t\tpass\n", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    '{"name": "Ada", "tags": ["x", "y"], "n": 42, "ok": true, "z": null}', "SELECT * FROM t WHERE id = 17;\r\n",
    "<html><body class=\"a\">&nbsp;</body></html>", "https://example.com/a/b?c=d&e=f#g", "C:\\Users\\me\\file name.txt",
    "a\u0000b\u0001c\u001f", "\ufeffBOM", "\r\r\n\n", "trailing spaces   \n   leading", "x" * 70, " " * 17 + "x", "\n" * 9, "-" * 33,
    "$\\int_0^1 x^2\\,dx = \\frac{1}{3}$", "A\u0301\u0302\u0303 combining", "ﬁ ligature", "𝕳𝖊𝖑𝖑𝖔 𝟙𝟚𝟛", "\U0010ffff", "\ue000 private",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|endoftext|>", "x<|endoftext|>y", "<|im_start|>", "<| im_start |>",
    "<repo_name>hearth<file_sep>a.rs", "<reponame>", "<gh_stars>10", "<jupyter_code>x = 1<jupyter_output>", "<empty_output>",
    "end.<|im_end|> next 12<|im_end|>34", "ALL CAPS AND camelCaseWords snake_case_words kebab-case-words",
]


def mixed(rng):
    parts = [" ", "  ", "\n", "\t", "the", " cat", "Über", "12", " 3", ".5", "'s", "'LL", "_", "--", "()", "{x}", "漢字", " 仮名", "🙂", "é",
             "e\u0301", "Ω", "ж", "<|im_end|>", "…", "“q”", "\u00a0", "\r\n", "1st", "٤", "½", "/", "\\", "https://", "==", "  if", "ing", "tion"]
    return "".join(rng.choice(parts) for _ in range(rng.randint(2, 14)))


def main():
    encoder = Encoder(sys.argv[1])
    rng = random.Random(2)
    texts = FIXED + [mixed(rng) for _ in range(240)]
    golden = [{"text": text, "ids": encoder.encode(text)} for text in texts]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(g, ensure_ascii=True) for g in golden) + "\n]\n")
    print(len(golden), "texts,", sum(len(g["ids"]) for g in golden), "ids")


if __name__ == "__main__":
    main()

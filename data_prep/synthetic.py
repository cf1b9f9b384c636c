"""A Markov source whose entropy rate is known exactly, so that a training run can be judged by a number.

Every transition probability is a multiple of 1/256 and a symbol is drawn by one random byte, so what is sampled is
the stated source and no approximation of it. Random bytes come from SHAKE-128: the same on every machine.
"""

import hashlib
import math
from array import array

SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-"  # symbol i as text
BLOCK = 1 << 20  # tokens per block of random bytes


class MarkovSource:
    """order 1 or 2 over `symbols` symbols. A context is the previous symbol, or a * symbols + b for order 2."""

    def __init__(self, symbols, order, seed):
        self.symbols, self.order, self.seed = symbols, order, seed
        self.counts = [self._row(c) for c in range(symbols**order)]  # 256 times the probabilities
        self.draw = [[s for s, n in enumerate(row) for _ in range(n)] for row in self.counts]
        self.stationary = self._stationary()
        # H = sum over contexts of pi(c) * H(row c); in nats per token
        self.entropy_nats = math.fsum(p * self._row_entropy(row) for p, row in zip(self.stationary, self.counts))

    @property
    def unigram_nats(self):
        """What a model reaches that learns only how frequent each symbol is."""
        share = [0.0] * self.symbols
        for context, p in enumerate(self.stationary):
            share[context % self.symbols] += p
        return -math.fsum(p * math.log(p) for p in share if p)

    def _random(self, what, n):
        return hashlib.shake_128(f"ringzero {self.seed} {self.symbols} {self.order} {what}".encode()).digest(n)

    def _row(self, context):
        """At least 1/256 for every symbol (so the chain is irreducible); the rest falls on few, as in text."""
        noise = self._random(f"row {context}", 4 * self.symbols)
        weights = [(int.from_bytes(noise[4 * s : 4 * s + 4], "little") / 2**32) ** 8 for s in range(self.symbols)]
        free, total = 256 - self.symbols, math.fsum(weights)
        row = [1 + int(free * w / total) for w in weights]
        row[max(range(self.symbols), key=lambda s: weights[s])] += 256 - sum(row)
        return row

    @staticmethod
    def _row_entropy(row):
        return -math.fsum(n / 256 * math.log(n / 256) for n in row if n)

    def _next_context(self, context, symbol):
        return symbol if self.order == 1 else context % self.symbols * self.symbols + symbol

    def _stationary(self):
        """Power iteration to double precision. The chain mixes fast: every row shares some mass with every other."""
        n = len(self.counts)
        p = [1 / n] * n
        for _ in range(10000):
            q = [0.0] * n
            for c, row in enumerate(self.counts):
                for s, count in enumerate(row):
                    q[self._next_context(c, s)] += p[c] * count / 256
            change = math.fsum(abs(a - b) for a, b in zip(p, q))
            p = q
            if change < 1e-15:
                break
        return p

    def blocks(self, stream, tokens):
        """Yields (array('H') of symbols, -log P of them in nats) for the named stream; another name is another text.
        Every block of 2^20 symbols starts in context 0."""
        logs = [[-math.log(n / 256) for n in row] for row in self.counts]
        draw, symbols, order = self.draw, self.symbols, self.order
        for block in range(-(-tokens // BLOCK)):
            n = min(BLOCK, tokens - block * BLOCK)
            out, nats, context = array("H", bytes(2 * n)), 0.0, 0
            for i, r in enumerate(self._random(f"{stream} {block}", n)):
                symbol = draw[context][r]
                out[i] = symbol
                nats += logs[context][symbol]
                context = symbol if order == 1 else context % symbols * symbols + symbol
            yield out, nats

    def settings(self):
        return {"symbols": self.symbols, "order": self.order, "seed": self.seed}

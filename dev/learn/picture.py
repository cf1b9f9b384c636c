"""An SVG picture that reads on light and dark pages: boxes, arrows, text; charts in it."""

import math

BLUE, ORANGE, GREEN, PINK, GREY, SLATE = "#3b82f6", "#e8710a", "#10a37f", "#c026d3", "#85898f", "#64748b"
COLOURS = (BLUE, ORANGE, GREEN, PINK)


class Picture:
    def __init__(self, title, height, width=760):
        self.title, self.width, self.height, self.parts = title, width, height, []

    def add(self, text):
        self.parts.append(text)

    def text(self, x, y, s, size=12, anchor="start", strong=False, colour=None, mono=False):
        s = str(s).replace("&", "&amp;").replace("<", "&lt;")
        c = " ".join(["strong"] * strong + ["mono"] * mono)
        fill = f' style="fill:{colour}"' if colour else ""
        self.add(f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
                 + (f' class="{c}"' if c else "") + f"{fill}>{s}</text>")

    def head(self, s, y=24, x=20):
        self.text(x, y, s, 15, strong=True)

    def box(self, x, y, w, h, colour, opacity=0.8, label="", size=12, text=None):
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="2" fill="{colour}" '
                 f'fill-opacity="{opacity:g}"/>')
        if label != "":
            self.text(x + w / 2, y + h / 2 + size * 0.36, label, size, "middle", colour=text)

    def frame(self, x, y, w, h, colour=GREY, dashed=False):
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" fill="none" stroke="{colour}"{dash}/>')

    def line(self, points, colour=GREY, width=1.5, dashed=False):
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.add(f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dash}/>')

    def arrow(self, x0, y0, x1, y1, colour=GREY, width=1.5):
        angle = math.atan2(y1 - y0, x1 - x0)
        tip = [(x1 - 8 * math.cos(angle + s), y1 - 8 * math.sin(angle + s)) for s in (0.4, -0.4)]
        base = (x1 - 6 * math.cos(angle), y1 - 6 * math.sin(angle))
        self.line([(x0, y0), base], colour, width)
        at = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(x1, y1), *tip])
        self.add(f'<polygon points="{at}" fill="{colour}"/>')

    def circle(self, x, y, r, colour=GREY, fill="none", opacity=1.0):
        self.add(f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}" fill="{fill}" fill-opacity="{opacity:g}" stroke="{colour}"/>')

    def axes(self, x, y, w, h, x_label, y_label):
        self.line([(x, y), (x, y + h), (x + w, y + h)], GREY, 1)
        self.text(x + w, y + h + 16, x_label, 11, "end")
        self.text(x, y - 8, y_label, 11)

    def svg(self):
        style = ("text{fill:#75797f}.strong{font-weight:600}"
                 ".mono{font-family:ui-monospace,'DejaVu Sans Mono',monospace}")
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" '
                "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">")
        return "\n".join([head, f"<title>{self.title}</title>", f"<style>{style}</style>", *self.parts, "</svg>", ""])


class Chart:
    """Axes in a picture. box: left, top, width, height in pixels; xs, ys: the ends of the axes in data; log: "", "x", "y" or "xy"."""

    def __init__(self, picture, box, xs, ys, log=""):
        self.picture, self.box = picture, box
        self.scales = [math.log if axis in log else float for axis in "xy"]
        self.ends = [[scale(end) for end in ends] for scale, ends in zip(self.scales, (xs, ys))]

    def x(self, value):
        low, high = self.ends[0]
        return self.box[0] + self.box[2] * (self.scales[0](value) - low) / (high - low)

    def y(self, value):
        """What lies beyond the axis is drawn at its end."""
        low, high = self.ends[1]
        return self.box[1] + self.box[3] * (1 - (min(max(self.scales[1](value), low), high) - low) / (high - low))

    def columns(self, values, name="{:g}".format):
        """A line up from each of the values, which stand below."""
        left, top, width, height = self.box
        for v in values:
            self.picture.line([(self.x(v), top), (self.x(v), top + height)], GREY, 0.3)
            self.picture.text(round(self.x(v), 1), top + height + 16, name(v), 11, "middle")

    def rows(self, values, name="{:g}".format):
        left, top, width, height = self.box
        for v in values:
            self.picture.line([(left, self.y(v)), (left + width, self.y(v))], GREY, 0.3)
            self.picture.text(left - 6, round(self.y(v) + 4, 1), name(v), 11, "end")

    def curve(self, points, colour, width=2):
        self.picture.line([(self.x(a), self.y(b)) for a, b in points], colour, width)

    def dot(self, a, b, colour, radius=4):
        self.picture.circle(round(self.x(a), 1), round(self.y(b), 1), radius, colour, colour)

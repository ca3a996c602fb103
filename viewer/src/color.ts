/** Colours of weights: ramps that are even in OKLab lightness, and how a weight becomes a shade. */

export type Theme = "light" | "dark";
export type Rgb = [red: number, green: number, blue: number];

function oklch(lightness: number, chroma: number, hue: number): Rgb {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((x) => (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055)) as Rgb;
}

/** The most colourful sRGB colour of this lightness and hue that has at most this chroma. */
function colour(lightness: number, chroma: number, hue: number): Rgb {
  const fits = (c: number) => oklch(lightness, c, hue).every((x) => x >= -1e-4 && x <= 1.0001);
  let [low, high] = [0, chroma];
  if (fits(chroma)) low = chroma;
  else for (let i = 0; i < 12; i++) fits((low + high) / 2) ? (low = (low + high) / 2) : (high = (low + high) / 2);
  return oklch(lightness, low, hue).map((x) => Math.round(255 * Math.min(Math.max(x, 0), 1))) as Rgb;
}

/** 256 colours. Lightness falls on light paper and rises on dark paper, by the same step from each to the next. */
export const RAMPS: Record<Theme, Rgb[]> = {
  light: ramp((t) => colour(0.975 - 0.735 * t, 0.02 + 0.19 * Math.sin(Math.PI * Math.min(t * 1.1, 1)), 235 + 45 * t)),
  dark: ramp((t) => colour(0.215 + 0.745 * t, 0.03 + 0.15 * Math.sin(Math.PI * Math.min(t * 1.05, 1)), 275 - 75 * t)),
};

/** Colours from what the other report has more of, over nothing, to what this one has more of. */
export const DIVERGING: Record<Theme, Rgb[]> = {
  light: ramp((t) => colour(0.975 - 0.55 * Math.abs(2 * t - 1), 0.19 * Math.abs(2 * t - 1), t < 0.5 ? 50 : 258)),
  dark: ramp((t) => colour(0.215 + 0.55 * Math.abs(2 * t - 1), 0.17 * Math.abs(2 * t - 1), t < 0.5 ? 60 : 250)),
};

function ramp(at: (t: number) => Rgb): Rgb[] {
  return Array.from({ length: 256 }, (_, i) => at(i / 255));
}

export const css = ([red, green, blue]: Rgb) => `rgb(${red} ${green} ${blue})`;

/** How a weight becomes a shade from 0 to 1. */
export interface Shading {
  shade(weight: number): number;
  weight(shade: number): number;
  ticks: number[];
}

/** Differences of weights: the square root of each side, with nothing in the middle. */
export const DIFFERENCES: Shading = {
  shade: (weight) => 0.5 + 0.5 * Math.sign(weight) * Math.sqrt(Math.min(Math.abs(weight), 1)),
  weight: (shade) => Math.sign(shade - 0.5) * (2 * shade - 1) ** 2,
  ticks: [-1, -0.25, 0, 0.25, 1],
};

/** The square root for short texts, the logarithm for long ones, where most weights are far below one. */
export function shading(length: number, top: number): Shading {
  if (length <= 200) {
    return {
      shade: (weight) => Math.min(Math.sqrt(weight / top), 1),
      weight: (shade) => shade * shade * top,
      ticks: [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1].map((share) => share * top),
    };
  }
  const low = Math.log(top / (4 * length));
  const high = Math.log(top);
  const powers = [1, 0.1, 0.01, 0.001, 0.0001, 0.00001].map((share) => share * top);
  return {
    shade: (weight) => Math.min(Math.max((Math.log(weight) - low) / (high - low), 0), 1),
    weight: (shade) => Math.exp(low + shade * (high - low)),
    ticks: powers.filter((tick) => Math.log(tick) >= low),
  };
}

/** Every sentence of the interface, in English and in Chinese. */

const english = {
  explore: "Explore",
  map: "Map",
  roles: "Roles",
  profiles: "Profiles",
  method: "How each number is made",
  heads: "Heads",
  headsLead: "Each square is the map of one head: words down look at words across.",
  layer: "Layer",
  headName: (layer: number, head: number) => `Layer ${layer}, head ${head}`,
  noRole: "no role",
  broken: "not a number",
  text: "Text",
  words: "Words of the text",
  wordsHint: "Hover shows, click keeps, Escape lets go. Arrow keys move.",
  looksAt: "looks at",
  lookedAtBy: "is looked at by",
  legendTo: "where it looks",
  legendFrom: "who looks at it",
  chooseWord: "Choose a word to see where it looks.",
  gives: "In this head, {token} gives {share} of its attention to {other}.",
  givesItself: "In this head, {token} gives {share} of its attention to itself.",
  givesNone: "In this head, {token} gives no other token {share} or more.",
  given: "{other} looks at it most, with {share}.",
  goThere: "Go there",
  earlierText: (share: string) => `${share} to earlier text`,
  laterText: (share: string) => `${share} to later text`,
  nothingKnown: (floor: string) => `no weight of ${floor} or more`,
  onlyMap: "The file holds only the map of this head.",
  rest: (share: string, floor: string) => `${share} lies in weights below ${floor}, or in a learned sink`,
  weight: "weight",
  below: (floor: string) => `below ${floor}`,
  hidden: "hidden by the mask",
  zoomIn: "Zoom in",
  zoomOut: "Zoom out",
  whole: "Whole text",
  mapHint: "Wheel or + and − zoom, drag or arrows move, 0 shows the whole text.",
  mapLabel: (what: string) => `Map of ${what}: queries down, keys across`,
  down: "looks ↓",
  across: "at →",
  cellsMaximum: "Strongest weight",
  cellsMass: "Weight in all",
  cells: "A cell shows",
  shadingSame: "Same for all heads",
  shadingOwn: "Relative to this head",
  shadingDifference: (other: string) => `Difference to ${other}`,
  colours: "Colours",
  tokensShown: (count: string) => `${count} tokens across`,
  paled: (floor: string) => `Cells are coarser than this view: they are pale. Marks are the weights of ${floor} or more.`,
  effective: "tokens attended to",
  largest: "largest weight",
  distance: "mean distance",
  first: "on the first token",
  means: "means over the text",
  byDistance: "Weight by distance",
  save: "Save",
  print: "Print",
  light: "Light",
  dark: "Dark",
  theme: "Colours of the page",
  languageName: "中文",
  exact: (error: string, all: boolean, codes: boolean) =>
    `Exact: every weight of ${all ? "every" : "this"} head, to ±${error}${codes ? ", computed from 12-bit queries and keys" : ""}.`,
  exactList: (tau: string, error: string, map: string) =>
    `Exact: all weights of this head of ${tau} or more, to ±${error}. The others are shown in cells, to ±${map}.`,
  exactKernel: "Exact: every weight of every head, as the kernel of the notebook computes it.",
  exactMap: (map: string) => `Of this head, the map is known, to ±${map} of a cell.`,
  nanHead: "The weights of this head are not numbers.",
  role: "Role",
  figure: "Figure",
  interval: "95 % interval",
  baseline: "Baseline",
  cases: "Cases",
  notMeasured: "Not measured",
  noRoles: "No head has a role on the texts that were measured.",
  unmeasured: "The roles of the heads were not measured.",
  rolesLead:
    "A role holds if the figure passes its threshold on both halves of the texts. The bar is the figure with its interval; the line is the baseline.",
  profilesLead: (name: string) => `${name}, along the text`,
  entropyAlong: "Entropy of queries, in nats",
  largestAlong: "Largest weight of queries",
  receivedAlong: "Attention that tokens receive",
  strongest: "Strongest links",
  noProfile: "This file does not hold it for this head.",
  loading: "Loading",
  tokens: (count: string) => `${count} tokens`,
  headCount: (count: string) => `${count} heads`,
};

type Language = typeof english;

const chinese: Language = {
  explore: "探索",
  map: "热图",
  roles: "角色",
  profiles: "分布",
  method: "数字从何而来",
  heads: "注意力头",
  headsLead: "每个方块是一个头的热图：纵向的词关注横向的词。",
  layer: "层",
  headName: (layer, head) => `层 ${layer}，头 ${head}`,
  noRole: "无角色",
  broken: "不是数值",
  text: "文本",
  words: "文本中的词",
  wordsHint: "悬停查看，单击固定，按 Esc 松开，方向键移动。",
  looksAt: "关注",
  lookedAtBy: "被谁关注",
  legendTo: "它关注谁",
  legendFrom: "谁关注它",
  chooseWord: "选一个词，看它关注哪里。",
  gives: "在这个头里，{token} 把 {share} 的注意力给了 {other}。",
  givesItself: "在这个头里，{token} 把 {share} 的注意力留给自己。",
  givesNone: "在这个头里，{token} 给其他任何词元的权重都不到 {share}。",
  given: "最关注它的是 {other}，占 {share}。",
  goThere: "前往该处",
  earlierText: (share) => `${share} 落在前文`,
  laterText: (share) => `${share} 落在后文`,
  nothingKnown: (floor) => `没有达到 ${floor} 的权重`,
  onlyMap: "文件中只有本头的热图。",
  rest: (share, floor) => `另有 ${share} 分散在低于 ${floor} 的权重中，或落在可学习的汇上`,
  weight: "权重",
  below: (floor) => `低于 ${floor}`,
  hidden: "被掩码遮住",
  zoomIn: "放大",
  zoomOut: "缩小",
  whole: "全文",
  mapHint: "滚轮或 + − 缩放，拖动或方向键平移，按 0 回到全文。",
  mapLabel: (what) => `${what}的热图：纵向为查询，横向为键`,
  down: "谁 ↓",
  across: "关注谁 →",
  cellsMaximum: "最大权重",
  cellsMass: "权重总和",
  cells: "每格显示",
  shadingSame: "各头统一",
  shadingOwn: "按本头最大值",
  shadingDifference: (other) => `与 ${other} 之差`,
  colours: "色阶",
  tokensShown: (count) => `横向 ${count} 个词元`,
  paled: (floor) => `格子比当前视野粗，故淡化显示；标出的是不低于 ${floor} 的权重。`,
  effective: "有效关注词元数",
  largest: "最大权重",
  distance: "平均距离",
  first: "落在首个词元",
  means: "全文平均",
  byDistance: "权重随距离的分布",
  save: "保存",
  print: "打印",
  light: "浅色",
  dark: "深色",
  theme: "页面配色",
  languageName: "English",
  exact: (error, all, codes) =>
    `精确：${all ? "所有头" : "本头"}的每个权重${codes ? "由 12 位查询与键算出" : ""}，误差不超过 ±${error}。`,
  exactList: (tau, error, map) => `精确：本头不低于 ${tau} 的全部权重，误差不超过 ±${error}；其余以格子显示，误差 ±${map}。`,
  exactKernel: "精确：所有头的每个权重，由笔记本的内核即时算出。",
  exactMap: (map) => `本头只有热图，每格误差 ±${map}。`,
  nanHead: "本头的权重不是数值。",
  role: "角色",
  figure: "数值",
  interval: "95 % 区间",
  baseline: "基线",
  cases: "样本数",
  notMeasured: "未测量",
  noRoles: "在所测文本上，没有头表现出明确的角色。",
  unmeasured: "尚未测量各头的角色。",
  rolesLead: "只有在两半文本上都超过阈值，角色才成立。横条为数值及其区间，竖线为基线。",
  profilesLead: (name) => `${name}：沿文本的变化`,
  entropyAlong: "查询的熵（奈特）",
  largestAlong: "查询的最大权重",
  receivedAlong: "词元收到的注意力",
  strongest: "最强的连接",
  noProfile: "文件中没有这个头的此项数据。",
  loading: "载入中",
  tokens: (count) => `${count} 个词元`,
  headCount: (count) => `${count} 个头`,
};

export type Code = "en" | "zh";
export const LANGUAGES: Record<Code, Language> = { en: english, zh: chinese };

/** Names of roles, and a sentence that says what such a head does. */
export const ROLES: Record<string, Record<Code, [name: string, says: string]>> = {
  coreferential: {
    en: ["coreferential", "This head leads a pronoun to the name that it stands for."],
    zh: ["指代", "这个头把代词引向它所指的名字。"],
  },
  syntactic: {
    en: ["syntactic", "This head joins words that stand in one grammatical relation."],
    zh: ["句法", "这个头把有语法关系的词连在一起。"],
  },
  induction: {
    en: ["induction", "This head finds an earlier copy of the token and looks at what came after it."],
    zh: ["归纳", "这个头找到该词元先前的出现处，并关注紧随其后的词元。"],
  },
  duplicate_token: {
    en: ["duplicate token", "This head looks at earlier copies of the same token."],
    zh: ["重复词元", "这个头关注同一词元先前的出现处。"],
  },
  rare_word: {
    en: ["rare word", "This head looks at the rarest word of the text."],
    zh: ["罕见词", "这个头关注文本中最罕见的词。"],
  },
  positional: {
    en: ["positional", "This head looks at one fixed distance, whatever the words are."],
    zh: ["位置", "无论词是什么，这个头总是看固定距离处的词元。"],
  },
  sink: {
    en: ["sink", "This head rests on the first token when it has nothing else to do."],
    zh: ["汇聚", "这个头无事可做时停在首个词元上。"],
  },
  delimiter: {
    en: ["delimiter", "This head looks at punctuation or special tokens."],
    zh: ["分隔符", "这个头关注标点或特殊词元。"],
  },
  block: {
    en: ["block", "This head stays within the sentence."],
    zh: ["句内", "这个头的注意力不出所在的句子。"],
  },
  local: {
    en: ["local", "This head looks at its close neighbours."],
    zh: ["局部", "这个头只看相邻的词元。"],
  },
  broad: {
    en: ["broad", "This head spreads its attention over the whole text."],
    zh: ["分散", "这个头把注意力分散到整个文本。"],
  },
};

/** The page that explains the numbers: headings and paragraphs. */
export const METHOD: Record<Code, [heading: string, text: string][]> = {
  en: [
    [
      "Weights",
      "The weight of a query and a key is softmax of their score over all keys that the query may see, before dropout. The weights of a query sum to one, or to less where a learned sink takes a part. Layers, heads and tokens are counted from 0, as in headway.",
    ],
    [
      "Words and tokens",
      "A model reads tokens. Tokens that are parts of one visible character are shown as one, and its shade is the sum of what they receive. All other numbers belong to single tokens.",
    ],
    [
      "Colours",
      "Up to 200 tokens a colour follows the square root of the weight; above, its logarithm. Ramps are even in OKLab lightness, so equal steps look equal. A cell that covers many weights shows the strongest of them, and a colour then means the same at every zoom.",
    ],
    [
      "What is exact",
      "A short report holds every weight in 16 bits (±0.04 % of itself). A long one holds maps of all heads in 8 bits (±3.6 %), every weight above a threshold in 16 bits (±0.14 %), and for chosen heads queries and keys in 12 bits, from which the page computes every weight. The foot of the page says which of these it shows, and the largest error that was measured when the file was written: of all weights, except that above 1,024 tokens the weights that are computed are checked for some of the queries.",
    ],
    [
      "Tokens attended to",
      "exp of the entropy: as many tokens with equal weights would have the same entropy. Entropy is −Σ A·ln A in nats.",
    ],
    ["Mean distance", "Σ A·|key − query| for each query, in tokens, averaged over the text."],
    [
      "Weight by distance",
      "The mean weight in ranges of key − query. Ranges double in width, so that near and far fit into one picture.",
    ],
    [
      "Attention received",
      "Σ A over all queries for each key. In a causal model early tokens are seen by more queries and receive more.",
    ],
    [
      "Roles",
      "A role is a definition from the literature with a figure, a baseline that needs no model, and a threshold. Candidates are chosen on every other text; figures and 95 % bootstrap intervals are those of the remaining texts. A role holds only if it does on both halves.",
    ],
    [
      "Which link opens first",
      "The strongest link between two content words by a head whose role depends on words; without one, that by any head. Words of one token come first, then parts of words, then links from a content word, then any. The first token and tokens without text do not count as keys. A content word has four letters or more, or Chinese characters, and does not stand for a relation, as “with” and 的 do.",
    ],
  ],
  zh: [
    [
      "权重",
      "查询与键之间的权重，是得分在该查询可见的所有键上做 softmax 的结果（dropout 之前）。一个查询的权重之和为 1；若有可学习的汇，则小于 1。层、头、词元都从 0 开始编号，与 headway 一致。",
    ],
    ["词与词元", "模型读取的是词元。同属一个可见字符的若干词元合并显示，颜色为它们所得权重之和；其余数字都针对单个词元。"],
    [
      "颜色",
      "不超过 200 个词元时，颜色按权重的平方根变化；更长时按对数变化。色阶在 OKLab 亮度上均匀，等步看起来也相等。一个格子覆盖多个权重时，显示其中最大的，因此颜色在任何缩放下含义相同。",
    ],
    [
      "哪些是精确的",
      "短文本的报告以 16 位保存每个权重（相对误差 ±0.04 %）。长文本保存所有头的 8 位热图（±3.6 %）、高于阈值的全部权重（16 位，±0.14 %），以及选定头的 12 位查询与键，页面由此算出每个权重。页脚说明当前显示的是哪一种，以及写文件时对全部权重测得的最大误差；超过 1,024 个词元时，算出的权重只抽查部分查询。",
    ],
    ["有效关注词元数", "熵的指数：多少个等权词元会有同样的熵。熵为 −Σ A·ln A，单位奈特。"],
    ["平均距离", "每个查询的 Σ A·|键 − 查询|，以词元计，再对全文取平均。"],
    ["权重随距离的分布", "按“键 − 查询”的区间统计的平均权重。区间宽度逐级加倍，远近都能放进一张图。"],
    ["收到的注意力", "每个键在所有查询上的 Σ A。在因果模型中，靠前的词元被更多查询看到，因而收到更多。"],
    [
      "角色",
      "角色是文献中的定义，带有一个数值、一个不需要模型的基线和一个阈值。候选在隔篇文本上选出，数值与 95 % 自助法区间来自其余文本。两半文本上都成立，角色才成立。",
    ],
    ["首先打开哪个连接", "角色取决于词的头在两个实词之间最强的连接；没有时看所有的头。先看由一个词元构成的词，再看词的一部分，然后是从实词出发的连接，最后是任意连接。首词元与没有文本的词元不算作键。实词至少有四个字母，或由汉字写成，且不是 with、“的”这类虚词。"],
  ],
};

/** A number as it is read: three digits, never rounded down to zero. */
export function number(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) >= 1000) return grouped(Math.round(value));
  if (Math.abs(value) >= 1) return value.toFixed(Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2);
  return Math.abs(value) < 10 ** -digits ? value.toExponential(0).replace("e-", "e−") : value.toFixed(digits);
}

const GROUPED = new Intl.NumberFormat("en-US");

/** A whole number, in groups of three digits. */
export const grouped = (value: number) => GROUPED.format(value);

/** A largest error, which the file has in two digits: fewer would make it smaller than it is. */
export function bound(error: number | null): string {
  return error === null ? "–" : String(Number(error.toPrecision(2))).replace("e-", "e−");
}

export function percent(share: number): string {
  if (share > 0 && share < 0.001) return `${(100 * share).toPrecision(1)} %`;
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}

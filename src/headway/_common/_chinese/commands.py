"""``headway encodings``, ``plan``, ``tune``, ``extend``, ``generate`` and ``new-encoding``."""

COMMANDS = {
    # headway encodings
    "name": "名称",
    "year": "年份",
    "acts on": "作用于",
    "beyond": "可外推",
    "kernels": "内核",
    "evidence": "依据",
    "what it is": "是什么",
    "positions": "位置",
    "embeddings": "嵌入",
    "q and k": "q 和 k",
    "scores": "分数",
    "v and output": "v 和输出",
    "all": "全部",
    "of the other part": "由另一部分决定",
    "scaling": "缩放",
    "coordinates": "坐标",
    "authors": "作者",
    "independent": "独立实现",
    "formula": "公式",
    "unknown": "未知",
    "makes attention depend on positions": "使注意力取决于位置",
    "changes another encoding so that it reaches further": "改动另一种编码，使它够得更远",
    "changes where tokens are, for another encoding to read: compose the two": (
        "改动词元的位置，供另一种编码读取：请把两者组合起来"
    ),
    "numbers of the authors' own code are in the tests": "与作者自己的代码算出的数字比较过，数字在测试里",
    "an independent implementation gives the same numbers in the tests": "测试里，另一份独立的实现给出同样的数字",
    "only the paper's formula, implemented twice: experimental": "只按论文的公式实现了两遍：属于试验性质",
    "unknown: the class declares no evidence": "未知：这个类没有说明依据",
    "{number} of kind {kind}": "{kind} {number} 种",
    "{count} rows: {kinds}": "共 {count} 种：{kinds}",
    "{kinds}; {functions} distinct functions whose numbers were compared with the authors' or another implementation.": (
        "{kinds}；其中有 {functions} 个不同的函数，数值与作者的或另一份实现比较过。"
    ),
    "parameters: for 8 heads of 64 and a length of 512, with a causal mask. beyond: whether longer inputs produce no values "
    "unseen in training, by construction. kernels: those that take it in training. Details of one encoding: headway "
    "encodings NAME": (
        "参数：8 个头，每头 64 维，长度 512，因果掩码。可外推：按构造，更长的输入是否不会产生训练中没见过的值。"
        "内核：训练时能用它的内核。一种编码的详情：headway encodings 名称"
    ),
    "acts on {places}": "作用于 {places}",
    "It has no docstring.": "没有文档字符串。",
    "Arguments": "参数",
    "Kind": "种类",
    "Evidence": "依据",
    "Kernels": "内核",
    "[bold]Properties[/bold], measured": "[bold]性质[/bold]（测得）",
    "picture: {out}": "图：{out}",
    "to draw it: {command}": "要画出它，请运行：{command}",
    "not its job": "与它无关",
    "each position is distinct from every other": "每个位置与其他位置都不同",
    "smallest difference between the codes of {count} positions, the longest being 1": (
        "{count} 个位置的编码之间的最小差异，以最长的编码为 1"
    ),
    "the encoding has no effect": "这种编码没有作用",
    "difference between places: scores depend on distance alone": "不同地方之间的差异：分数只取决于距离",
    "smallest difference between the scores seen from {count} positions, the largest being 1": (
        "从 {count} 个位置看到的分数之间的最小差异，以最大的为 1"
    ),
    "the distance between two positions is visible": "看得出两个位置的距离",
    "share of the differences between pairs that their distance explains": "各对之间的差异，有多大比例可以由距离解释",
    "a distance has the same effect everywhere": "同样的距离在各处作用相同",
    "the encoding has no effect, so nothing can differ": "这种编码没有作用，也就无从不同",
    ", for equal tokens": "，词元相同时",
    "largest difference at one distance over {count} places and lengths{equal}, the largest value being 1": (
        "同一距离在 {count} 种地方和长度上的最大差异{equal}，以最大的值为 1"
    ),
    "the values stay bounded": "取值有界",
    "nothing is added": "没有加任何东西",
    "value of a code": "编码的值",
    "change of a score": "分数的变化",
    "change of a value": "值向量的变化",
    "prepared query or key, of length 1 before": "处理后的查询或键（处理前长度为 1）",
    "position": "位置",
    "distance": "距离",
    "largest {what}, at {where} {far}; at {near} it is {then:.6g}": "{what}的最大值，{where}为 {far} 时；为 {near} 时是 {then:.6g}",
    "largest {what}, up to {where} {far}": "{what}的最大值，{where}不超过 {far}",
    ", the last measured": "，这是测到的最后一个",
    # headway plan
    "sent forward": "前向发送",
    "sent backward": "反向发送",
    "link": "链路",
    "hidden from {rate}": "{rate} 起不另花时间",
    "a tenth of the time from {rate}": "{rate} 起占十分之一的时间",
    "use {counts} ranks": "请用 {counts} 个进程",
    "one key head cannot be divided": "只有一个键头，无法再分",
    "{heads} key heads do not divide among {ranks} ranks: {instead}": "{heads} 个键头不能平分给 {ranks} 个进程：{instead}",
    "A rank has {tokens:,.0f} tokens; each layer holds {held} of q, k, v and output for its backward pass. Memory is what a "
    "layer takes beyond q, k and v while it computes.": (
        "每个进程有 {tokens:,.0f} 个词元；每层为反向传播留存 q、k、v 和输出，共 {held}。"
        "“内存”是一层计算时在 q、k、v 之外占用的。"
    ),
    "One rank has the whole sequence: an ordinary call computes it.": "只有一个进程，序列全在它那里：普通的调用就能计算。",
    "{method} takes the least time at these speeds.": "按这些速度，{method} 用时最少。",
    "gather: a rank has at most {count:,} tokens, so that few messages matter more than bytes.": (
        "选 gather：每个进程最多 {count:,} 个词元，消息少比字节少更要紧。"
    ),
    "ring: a rank has more than {count:,} tokens, whose computing can hide the messages.": (
        "选 ring：每个进程超过 {count:,} 个词元，计算的时间足以盖住通信。"
    ),
    # headway tune
    "{source} is now in {written}": "{source} 已写入 {written}",
    "verifying {kernel}": "正在验证 {kernel}",
    "compiling": "正在编译",
    "measuring attention": "正在测量注意力",
    "measuring linear maps": "正在测量线性映射",
    "{kernel}: right in {count} of {parts} checked parts": "{kernel}：检查了 {parts} 项，{count} 项正确",
    "wrong: {why}": "错误：{why}",
    "{count} checks or measurements were left out for time: --minutes takes more": (
        "时间不够，有 {count} 项检查或测量没有做：用 --minutes 多给些时间"
    ),
    "linear maps, {product}": "线性映射，{product}",
    "terms: {terms}": "项：{terms}",
    "inference": "推理",
    "{kernel} {count} of {calls}, {low:.2f} to {high:.2f} times as fast": (
        "{kernel} {count}/{calls}，快 {low:.2f} 到 {high:.2f} 倍"
    ),
    "{calls}: fastest is {fastest}": "{calls}：最快的是 {fastest}",
    # headway extend
    "Perplexity by position": "各位置上的困惑度",
    "No position lies beyond the window of {window:,}.": "没有哪个位置超出 {window:,} 的窗口。",
    "The unchanged model has a perplexity of {beyond} beyond the window, and {inside} within it.": (
        "不作改动的模型，困惑度在窗口之外是 {beyond}，窗口之内是 {inside}。"
    ),
    "The restarted model has {base} beyond the window. Compared with that: {which}.": (
        "到窗口末尾就从头读起的模型，在窗口之外是 {base}。与它相比：{which}。"
    ),
    "Change within the window, compared with the unchanged model: {which}.": "窗口之内，与不作改动的模型相比：{which}。",
    "There is one window of text: it is not known whether these differences hold for other texts.": (
        "只有一个窗口的文本：换了别的文本，这些差别是否还在，并不知道。"
    ),
    "A quick measurement, of few methods and a short text.": "这是一次快速测量，方法少，文本短。",
    "{model} ({dtype}), trained for {window:,} tokens; factor {factor:g}; no training.": (
        "{model}（{dtype}），训练长度 {window:,} 个词元；放大 {factor:g} 倍；不作训练。"
    ),
    "{count} window": "{count} 个窗口",
    "{count} windows": "{count} 个窗口",
    "{text}: {windows} of {length:,} tokens, the same for all, read in pieces of {window:,} with a cache.": (
        "{text}：{windows}，每个 {length:,} 个词元，各方法都相同，分段读入，每段 {window:,} 个，用缓存。"
    ),
    "Perplexity is exp of the mean −ln p of the next token, by how many are known.": (
        "困惑度是下一个词元的 −ln p 取平均再取 exp，按已知多少个词元分列。"
    ),
    "{save}: the model with {method}, for headway.load and transformers": (
        "{save}：用了 {method} 的模型，headway.load 和 transformers 都能读"
    ),
    # headway generate, headway new-encoding
    "{model}. An empty line ends the conversation.": "{model}。输入空行，结束对话。",
    "{file}: {name}, a working encoding to change": "{file}：{name}，一种可以直接运行的编码，供你修改",
    "{test}: its test": "{test}：它的测试",
    "after pip install pytest": "先运行 pip install pytest",
}

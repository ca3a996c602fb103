"""``headway bench``."""

BENCH = {
    "isa": "指令集",
    "{total} cases": "共 {total} 项",
    "{total} cases, {done} of them measured before": "共 {total} 项，其中 {done} 项以前测过",
    "checking the kernel {kernel}": "正在检查内核 {kernel}",
    "checking {case}": "正在检查：{case}",
    "no number": "没有数字",
    "{size:,.1f} MiB beyond inputs and outputs": "输入和输出之外 {size:,.1f} MiB",
    "{share:.0f} % of the roof": "达到处理器上限的 {share:.0f}%",
    "{times:.2f}× {side}": "速度是“{side}”的 {times:.2f} 倍",
    ", kernel {kernel}": "，内核 {kernel}",
    # targets
    "[bold]Targets[/bold], the worst case of each, for a processor with AVX-512 and BF16": (
        "[bold]目标[/bold]（各取最差的一项；针对有 AVX-512 和 BF16 的处理器）"
    ),
    "target": "目标",
    "wanted": "要求",
    "measured": "测得",
    "met": "达到",
    "missed": "未达到",
    "for Zen 5": "只针对 Zen 5",
    "forward, full, no bias, against SDPA": "前向，无掩码，无偏置，与 SDPA 相比",
    "forward, ALiBi, T5 or KERPLE, against SDPA with a dense bias": "前向，ALiBi、T5 或 KERPLE，与带稠密偏置的 SDPA 相比",
    "the same against compiled FlexAttention": "同上，与编译过的 FlexAttention 相比",
    "forward, causal, against SDPA is_causal": "前向，因果掩码，与 SDPA 的 is_causal 相比",
    "share of the roof, forward, full, no bias, n ≥ 2,048": "达到处理器上限的比例，前向，无掩码，无偏置，n ≥ 2,048",
    "backward, no bias, against SDPA's backward": "反向，无偏置，与 SDPA 的反向相比",
    "the same with heads of 128": "同上，每头 128 维",
    "the same with heads of 64 (a stretch)": "同上，每头 64 维（力争达到）",
    "share of the roof, backward, full, no bias, n ≥ 1,152": "达到处理器上限的比例，反向，无掩码，无偏置，n ≥ 1,152",
    "backward with a learned table, against SDPA with a dense bias that wants its gradient": (
        "反向，可学习的表，与稠密偏置要求梯度的 SDPA 相比"
    ),
    "extra cost of a distance table over none, forward": "距离表比没有它多用的时间，前向",
    "extra cost of a distance table over none, backward with its gradient": "距离表比没有它多用的时间，反向，包括表的梯度",
    "Shaw and Transformer-XL over none, forward": "Shaw 和 Transformer-XL 与无编码的用时之比，前向",
    "a long causal window against full causal: time over area": "长的因果窗口与整个因果掩码相比：用时之比除以面积之比",
    "one token against a cache: share of the bandwidth of a copy": "一个词元对缓存：达到复制的带宽的比例",
    "one query against a cache: share of the bandwidth of reading alone": "一个查询对缓存：达到只读的带宽的比例",
    "5 to 48 queries against a cache, against SDPA": "5 到 48 个查询对缓存，与 SDPA 相比",
    "packed documents over the same as a batch": "拼接的文档与同样的文档分成一批的用时之比",
    "padding in front over the same without": "前面有填充与没有填充的用时之比",
    "n = 128, no encoding or a distance table, against SDPA": "n = 128，无编码或距离表，与 SDPA 相比",
    "memory beyond inputs and outputs, T5, 65,536 tokens, forward and backward": (
        "输入和输出之外的内存，T5，65,536 个词元，前向和反向"
    ),
    "memory grows linearly: exponent of n from one length to the next": "内存线性增长：从一个长度到下一个，n 的指数",
    "attention with all one-pass statistics over attention, n ≥ 4,096": (
        "带全部一遍算完的统计量的注意力与注意力的用时之比，n ≥ 4,096"
    ),
    "attention with each one-pass statistic over attention, n ≥ 4,096": (
        "带任一项一遍算完的统计量的注意力与注意力的用时之比，n ≥ 4,096"
    ),
    "column sums: time added to attention, over attention, n ≥ 4,096": "列的和：多用的时间与注意力用时之比，n ≥ 4,096",
    "attention with the top 8 keys over attention, n ≥ 4,096": "带权重最大的 8 个键的注意力与注意力的用时之比，n ≥ 4,096",
    "statistics alone against materialized weights in torch, n ≥ 4,096": (
        "只算统计量，与 torch 由存下的权重来算相比，n ≥ 4,096"
    ),
    "memory of statistics grows linearly: exponent of n from one length to the next": (
        "统计量的内存线性增长：从一个长度到下一个，n 的指数"
    ),
    "prefill of 4,096 tokens and more, against transformers with sdpa": (
        "预填充 4,096 个词元以上，与 transformers 的 sdpa 相比"
    ),
    "one token after a prompt, against transformers with sdpa": "提示之后的一个词元，与 transformers 的 sdpa 相比",
    "a token of a small decoder after 128, against one by hand": "小解码器在 128 个词元之后的一个词元，与手写的相比",
    "the same after 1,024 and more": "同上，在 1,024 个以上的词元之后",
    "training step of T5's encoder at 2,048 tokens and more, against transformers with eager": (
        "T5 编码器在 2,048 个以上的词元上训练一步，与 transformers 的 eager 相比"
    ),
    "memory of that step grows linearly: exponent of n from one length to the next": (
        "这一步的内存线性增长：从一个长度到下一个，n 的指数"
    ),
}

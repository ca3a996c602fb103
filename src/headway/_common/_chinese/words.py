"""Signs and words that several commands print."""

WORDS = {
    ": ": "：",
    ", ": "、",
    "; ": "；",
    ".": "。",
    " and ": "、",
    " or ": " 或 ",
    " to ": " 到 ",
    "{names} and {last}": "{names} 和 {last}",
    "{fact} ({note})": "{fact}（{note}）",
    "{headline}.": "{headline}。",
    "yes": "是",
    "no": "否",
    "none": "无",
    "nothing": "无",
    "byte": "字节",
    "bytes": "字节",
    "token": "词元",
    "tokens": "词元",
    "bytes/s": "字节/秒",
    "tokens/s": "词元/秒",
    "encoding": "编码",
    "method": "方法",
    "kernel": "内核",
    "memory": "内存",
    "parameters": "参数",
    "seconds": "秒",
    "seed": "种子",
    "steps": "步数",
    "time": "时间",
    "Chinese": "中文",
    "English": "英文",
    "chinese": "中文",
    "english": "英文",
    "one seed": "一个种子",
    "mean of {count} seeds": "{count} 个种子的平均",
    "{count} of {runs}": "{count}/{runs}",
    "{length:,} {unit}": "{length:,} {unit}",
    "{length} {unit}": "{length} {unit}",
    "{seconds} s": "{seconds} 秒",
    "{minutes} min {seconds:02d} s": "{minutes} 分 {seconds:02d} 秒",
    "{hours} h {minutes:02d} min": "{hours} 小时 {minutes:02d} 分",
    "time left: about {time}": "还要大约 {time}",
    "writing the report": "正在写报告",
    "stopped; the same command resumes from {out}": "已停下；再次运行同一条命令，就从 {out} 接着做",
    "The protocol, fixed before any result is seen": "实验设置（看到任何结果之前就已定好）",
    "{mean} (one seed)": "{mean}（一个种子）",
    "{mean} (95 % interval {low} to {high})": "{mean}（95% 区间：{low} 到 {high}）",
    "{a} − {b}: {number}": "{a} − {b}：{number}",
    "This machine is busy, with a load average of {load:.1f} on {count} cores before anything is measured: end other "
    "processes, or times will be too long.": (
        "这台机器正忙：还没开始测量，{count} 个核上的平均负载就有 {load:.1f}。请先结束其他进程，否则测得的时间会偏长。"
    ),
    "It runs on {gpu}, where a fused kernel computes the attention of every model.": (
        "在 {gpu} 上运行：那里有融合内核，能计算每个模型的注意力。"
    ),
    "It runs on the CPU: on {gpu} no fused kernel computes the attention of {which}. Give --device {gpu} to use the GPU "
    "all the same, or leave them out.": (
        "在 CPU 上运行：在 {gpu} 上，没有融合内核能计算 {which} 的注意力。"
        "如果仍要用 GPU，请加 --device {gpu}；或者去掉这些编码。"
    ),
}

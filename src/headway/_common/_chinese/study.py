"""``headway compare``: comparisons on a text and on tasks of symbols."""

STUDY = {
    # progress
    "training": "训练",
    "trying learning rates": "试学习率",
    "measuring": "测量",
    "recall": "回忆",
    "the report": "写报告",
    "language model": "语言模型",
    "{task} at learning rate {rate:g}": "{task}，学习率 {rate:g}",
    "{task}, measuring": "{task}，正在测量",
    "{doing}, step {step:,} of {steps:,}, {loss:.2f} bits": "{doing}，第 {step:,}/{steps:,} 步，{loss:.2f} 比特",
    "step {step:,} of at most {steps:,}, {loss:.2f} bits": "第 {step:,} 步（最多 {steps:,} 步），{loss:.2f} 比特",
    "{total} trainings{known}, {left} to go; held-out bits per byte at each length.": (
        "共 {total} 次训练{known}，还剩 {left} 次；以下是各长度上留出文本每字节的比特数。"
    ),
    ", {done} of them done before": "，其中 {done} 次以前已完成",
    "Expected, by the speed of a few steps: {time} ({parts}).": "按几步的速度估计，需要 {time}（{parts}）。",
    # tables
    "of the encoding": "编码的参数",
    "peak MiB": "内存峰值（MiB）",
    "compiled": "已编译",
    "learned": "学会",
    "{name}, counted": "{name}（统计）",
    "[bold]Held-out bits per byte[/bold], {over}, by length in {unit}": (
        "[bold]留出文本每字节的比特数[/bold]，{over}，按长度（以{unit}计）"
    ),
    "[bold]Recall[/bold], right answers in per cent": "[bold]回忆[/bold]，正确率（%）",
    "[bold]Learning rates[/bold], bits per byte of a part for validation": (
        "[bold]学习率[/bold]，验证部分每字节的比特数"
    ),
    "What it took": "代价",
    "What may be concluded": "可以得出的结论",
    "[bold]What may be concluded[/bold]; report.html has all of it, with intervals": (
        "[bold]可以得出的结论[/bold]（全部结论和区间见 report.html）"
    ),
    # conclusions on a text
    "the trained length": "训练长度",
    "{times:g}× the trained length": "训练长度的 {times:g} 倍",
    "At {where} ({length})": "在{where}（{length}）上",
    "{at} {best} is best: {value:.3f} bits per byte ({over})": "{at}，{best} 最好：每字节 {value:.3f} 比特（{over}）",
    "; next is {second} with {value:.3f}": "；其次是 {second}，{value:.3f}",
    ", which the seeds do not separate from it": "，但种子分不开二者",
    "{at} no encoding has a finite loss.": "{at}，没有哪种编码的损失是有限的。",
    "{at} no encoding that has learned has a finite loss.": "{at}，学到了东西的编码里，没有哪种的损失是有限的。",
    "{at} none is ranked, since none is below a {model} model of the same text: train longer.": (
        "{at}不作排名，因为没有哪种低于同一文本的 {model} 模型：请训练得更久。"
    ),
    "One seed separates nothing: any of these differences may be chance.": "一个种子什么也分不开：这些差别都可能出于偶然。",
    "There is no other encoding to compare with.": "没有别的编码可以比较。",
    "{close} of {pairs} pairs at {at:,}": "长度 {at:,} 上 {pairs} 对中的 {close} 对",
    "The {seeds} seeds do not separate {which} {unit}.": "{seeds} 个种子分不开的有：{which}（长度以{unit}计）。",
    "Nothing has been measured yet.": "还什么都没有测。",
    "Encodings, trained for {steps} steps": "各种编码，训练 {steps} 步",
    "{name}, trained for {steps} steps": "{name}，训练 {steps} 步",
    "Recurrent baselines: {each}": "循环网络基线：{each}",
    "{name} {steps} steps": "{name} {steps} 步",
    "The seconds of a step differ between seeds by more than {ratio:g}× ({paces}): {why}, and seconds and tokens a second "
    "say little.": "不同种子每步用时相差超过 {ratio:g} 倍（{paces}）：{why}，所以用时和每秒词元数说明不了什么。",
    "other work shared the machine": "机器上还有别的工作",
    "machines differ, or other work shared them": "机器不同，或机器上还有别的工作",
    "Trained by time and not alike between seeds: {steps}. Their means say little.": (
        "按时间训练，各种子的步数相差很大：{steps}。它们的平均值说明不了什么。"
    ),
    "hardly learned and are not ranked": "几乎没有学到东西，不参加排名",
    "learned little": "学到的很少",
    "Not below a {model} model of the same text, counted ({bits:.3f} bits per byte), at {at}: {those}. They have {verdict}: "
    "what is concluded on them is about early training.": (
        "在 {at}上，不低于同一文本统计得到的 {model} 模型（每字节 {bits:.3f} 比特）的有：{those}。"
        "它们{verdict}：关于它们的结论只适用于训练初期。"
    ),
    "Without a finite loss at {at}, since training diverged: {names}.": "训练发散，在 {at}上没有有限损失的有：{names}。",
    "encodings": "编码",
    "models": "模型",
    "All {kind} are below a {model} model of the same text, counted ({bits:.3f} bits per byte), at {at}.": (
        "在 {at}上，所有{kind}都低于同一文本统计得到的 {model} 模型（每字节 {bits:.3f} 比特）。"
    ),
    "At {length} {name}": "在 {length}上，{name}",
    "{at} cannot be compared with an encoding.": "{at} 无法与编码比较。",
    "every encoding": "每种编码",
    "every encoding that has learned": "每种学到了东西的编码",
    "is better than {every}": "比{every}都好",
    "is not better than the best encoding": "不比最好的编码好",
    "is not separated from the best encoding": "与最好的编码分不开",
    "{at}, with {value:.3f}, {verdict}; {pair}.": "{at} 为 {value:.3f}，{verdict}；{pair}。",
    "Better at {far} than at {near:,}, in bits per byte: {which}.": "在 {far}上比在 {near:,} 上好的（每字节比特数之差）：{which}。",
    "Worse at {far} than at {near:,}, in bits per byte: {which}.": "在 {far}上比在 {near:,} 上差的（每字节比特数之差）：{which}。",
    "Not shown to be better or worse at {far} than at {near:,}, in bits per byte: {which}.": (
        "在 {far}上与在 {near:,} 上相比，看不出好坏的（每字节比特数之差）：{which}。"
    ),
    "Without a number at {at}: {names}.": "在 {at}上没有数字的有：{names}。",
    "One seed separates nothing and has no intervals: any of these differences may be chance. Run with --seeds 3 to see "
    "which remain.": ("一个种子什么也分不开，也没有区间：这些差别都可能出于偶然。用 --seeds 3 再运行，看看哪些还在。"),
    "At {length} the {seeds} seeds": "在 {length}上，{seeds} 个种子",
    "{at} separate every pair of encodings.": "{at}把每一对编码都分开了。",
    "; and {count} more, in the table of differences": "；另有 {count} 对，见差异表",
    "{at} do not separate {close} of {pairs} pairs of encodings: {which}{more}.": (
        "{at}分不开 {pairs} 对编码中的 {close} 对：{which}{more}。"
    ),
    "Intervals are those of Student's t for the mean of the differences of the seeds; a pair is separated if its interval "
    "excludes 0.": "区间是各种子差值的平均值的 Student t 区间；区间不含 0 的，才算分得开。",
    "Each interval is at {level:g} % by itself and not jointly: of {pairs} pairs that do not differ, {wrong:.1f} would be "
    "separated by chance, on average.": (
        "每个区间单独看是 {level:g}%，合起来则不是：若有 {pairs} 对其实没有差别，平均也会有 {wrong:.1f} 对碰巧分开。"
    ),
    "{count} of {pairs} pairs at {at}": "{at}上 {pairs} 对中的 {count} 对",
    "Jointly, with Holm's correction of the t tests of all pairs of a length, p is below {p:.2g} for {which}.": (
        "合起来看，对同一长度上所有配对的 t 检验作 Holm 校正之后，p 低于 {p:.2g} 的有：{which}。"
    ),
    "{name} ({rate:g}, the lowest)": "{name}（{rate:g}，最低的一个）",
    "{name} ({rate:g}, the highest)": "{name}（{rate:g}，最高的一个）",
    "The chosen learning rate is at the edge of those tried for {which}: a rate beyond it may be better.": (
        "选中的学习率在试过的范围边上：{which}。再往外的学习率也许更好。"
    ),
    "Recall in sequences of {far:,}, of those that learned it at {near:,}: {which}.": (
        "在 {near:,} 上学会回忆的，在 {far:,} 长的序列里的正确率：{which}。"
    ),
    "Recall was not learned in {steps:,} steps by {which}: their misses at larger distances say nothing about distance.": (
        "{steps:,} 步没有学会回忆的有：{which}。它们在更远处答错，说明不了距离的影响。"
    ),
    # the protocol on a text
    "as bytes": "按字节读",
    "as tokens of {tokenizer} ({count:.2f} bytes each in the held-out part)": (
        "按 {tokenizer} 的词元读（留出部分平均每个 {count:.2f} 字节）"
    ),
    " under {dtype} autocast, measured in float32": "，在 {dtype} 的 autocast 下训练，用 float32 测量",
    ", through torch.compile, whose time counts as training": "，经过 torch.compile，编译的时间算在训练里",
    "learning rate {rates} with {count} warm-up steps and a cosine to zero, gradients clipped to length 1. One learning rate "
    "for all; an encoding's own parameters have a multiple of it only if its paper says so.": (
        "学习率 {rates}，预热 {count} 步，再按余弦降到零，梯度裁剪到长度 1。所有模型用同一个学习率；"
        "只有论文要求时，编码自己的参数才用它的倍数。"
    ),
    "{count} warm-up steps and a cosine to zero, gradients clipped to length 1. Learning rates: {rates}. With the first "
    "seed every model, baselines too, is trained with each; the one with the lowest loss on the validation part at the "
    "trained length is used for all of its seeds. All are reported. An encoding's own parameters have a multiple of it only "
    "if its paper says so.": (
        "预热 {count} 步，再按余弦降到零，梯度裁剪到长度 1。学习率：{rates}。用第一个种子，每个模型（包括基线）各试一遍，"
        "在训练长度的验证部分上损失最低的那个，用于它的所有种子。全部如实报告。"
        "只有论文要求时，编码自己的参数才用学习率的倍数。"
    ),
    "Text: {corpus} {cut}, sha256 {hash}. The last tenth, in one piece, is held out; nothing is chosen by it. The twentieth "
    "before it is the validation part; no model is trained on it.": (
        "文本：{corpus}，{cut}，sha256 {hash}。最后十分之一整段留出，什么都不凭它来选。"
        "它前面的二十分之一是验证部分，不用来训练。"
    ),
    "Model: a causal Transformer of {layers} layers, {width} wide, {heads} heads, pre-norm, GELU, no dropout, token "
    "embeddings times 4. All encodings get the same attention scale 1/√head_dim, also T5, whose paper has none and "
    "compensates for it by the initial values.": (
        "模型：因果 Transformer，{layers} 层，宽 {width}，{heads} 个头，先归一化，GELU，没有 dropout，词元嵌入乘以 4。"
        "所有编码的注意力缩放都是 1/√head_dim；T5 的论文没有缩放，靠初值补偿，这里也同样缩放。"
    ),
    "The same for all: with one seed, every encoding is trained on the same windows in the same order, and parameters with "
    "the same name start from the same values: matrices from N(0, 1/inputs), drawn by seed and name, biases 0, norms 1. "
    "Parameters of an encoding start as its paper says.": (
        "各编码相同的：种子相同时，窗口和次序相同，同名的参数从相同的值开始：矩阵取自 N(0, 1/输入数)，由种子和名称决定，"
        "偏置为 0，归一化为 1。编码自己的参数按其论文的初值。"
    ),
    "Training: {steps:,} steps of {batch} windows of {length:,} {unit}{how}; AdamW (β 0.9 and 0.98, weight decay 0.01 on "
    "shared matrices), {pace}": (
        "训练：{steps:,} 步，每步 {batch} 个窗口，每个 {length:,} {unit}{how}；"
        "AdamW（β 为 0.9 和 0.98，共有的矩阵权重衰减 0.01），{pace}"
    ),
    "Held-out loss: bits per byte at {lengths} {unit}. For every length the same {unit} are predicted, in separate windows, "
    "each without the text before it, and in sliding windows: they overlap by half, and the second half is predicted. Loss "
    "by position is the sliding loss in windows of many lengths: of the same {unit}, given so many {unit} before them.": (
        "留出文本上的损失：长度为 {lengths} {unit}时每字节的比特数。各长度预测的是同样的{unit}：一种用互不相连的窗口，"
        "看不到窗口之前的文本；一种用滑动窗口，前后重叠一半，只预测后一半。"
        "按位置的损失就是许多种长度的滑动窗口上的损失：同样的{unit}，给出它们前面这么多{unit}。"
    ),
    "2-gram and 5-gram: models that count the {unit} of the training part (interpolated Kneser–Ney with modified discounts) "
    "and predict each {one} from the one or the four before it.": (
        "2-gram 和 5-gram：统计训练部分的{unit}（插值 Kneser–Ney，修正折扣），由前一个或前四个预测每个{one}。"
    ),
    "Learned positions end with their table: — marks lengths beyond it, and a second row shows the same trained model with "
    "its table interpolated.": (
        "可学习的位置到表尾为止：更长的长度记作 —，另有一行是把同一个训练好的模型的表插值后的结果。"
    ),
    "The LSTM has two rows: with as many parameters as the Transformer without positions (within 5 %), and trained for as "
    "much time as the median Transformer.": (
        "LSTM 有两行：一行的参数与没有位置的 Transformer 一样多（相差不超过 5%），"
        "一行的训练时间与各 Transformer 的中位数一样长。"
    ),
    "A quick comparison, with few seeds and steps: differences may be chance, and may turn with more.": (
        "这是一次快速比较，种子少，步数少：差别可能出于偶然，训练多了也可能反过来。"
    ),
    "The number of steps, the same for all, was chosen by a short measurement of speed so that the whole takes at most "
    "{minutes:g} minutes.": "步数各模型相同，由一次简短的测速选定，使全部工作不超过 {minutes:g} 分钟。",
    "Recall: cards, each with a key and a value, are shown once; later a key alone asks for its value. A model of one layer "
    "is trained for each encoding ({steps:,} steps of {batch} sequences of {length:,}, learning rate {rate:g}) and tested "
    "at every length, by the distance of the card. Guessing is right 1 time in 8.": (
        "回忆：先给出一些卡片，每张有一个键和一个值，只出现一次；后面只给出键，要答出它的值。"
        "为每种编码训练一个一层的模型（{steps:,} 步，每步 {batch} 个长 {length:,} 的序列，学习率 {rate:g}），"
        "在各长度上按卡片的距离测试。随便猜，八次对一次。"
    ),
    # tasks of symbols
    "task": "任务",
    "trained up to": "训练到",
    "guessing": "猜测",
    "no order": "不知顺序",
    "example → what is scored": "例子 → 计分的部分",
    "symbols": "个符号",
    "letters": "个字母",
    "pairs": "对",
    "brackets": "个括号",
    "digits of a summand": "位的加数",
    "all cases": "全部",
    "no case": "几乎没有",
    "Guessing and the best rule that knows no order: examples that are right in every token, at the trained length (for "
    "sums of more than three digits a bound above it). A task of your own: path.py:Class, derived from "
    "headway.study.tasks.SequenceTask.": (
        "“猜测”和“不知顺序”的最佳规则：在训练长度上，所有词元都对的例子占多少（加数超过三位时是一个上界）。"
        "你自己的任务：path.py:Class，从 headway.study.tasks.SequenceTask 派生。"
    ),
    "{task}, exact match in per cent by length": "{task}，各长度上的完全匹配率（%）",
    "At the trained length no model learned a task within the budget.": "在训练长度上，没有模型在预算之内学会任何一项任务。",
    "{names} learned most: {count} of {runs} trainings": "{names} 学会得最多：{runs} 次训练中的 {count} 次",
    "{names} learned most: {count} of {runs} trainings each": "{names} 学会得最多：各为 {runs} 次训练中的 {count} 次",
    "{name} {count} of {runs}": "{name} {count}/{runs}",
    "tokens ({times}×)": "词元（{times}×）",
    "At the trained length {found}.": "在训练长度上，{found}。",
    "Beyond it nothing can be said, since no task was learned.": "更长的长度上无话可说，因为没有学会任何任务。",
    "{name} on {task} ({value:.0%})": "{task} 上是 {name}（{value:.0%}）",
    "{name} on {tasks}": "{tasks} 上是 {name}",
    "Beyond it, up to {times} times as long, the best mean exact match has {has}.": (
        "更长的长度上（最长 {times} 倍），平均完全匹配率最高的，{has}。"
    ),
    "No two encodings learned the same task with the same seed, so that none can be compared.": (
        "没有哪两种编码用同一个种子学会了同一项任务，所以无从比较。"
    ),
    "There is one seed, which separates nothing: every difference may be chance.": (
        "只有一个种子，什么也分不开：每个差别都可能出于偶然。"
    ),
    "The {seeds} seeds separate {apart} of {pairs} pairs of encodings on the same task": (
        "{seeds} 个种子把同一任务上的 {pairs} 对编码分开了 {apart} 对"
    ),
    "{found}: every difference may be chance.": "{found}：每个差别都可能出于偶然。",
    "on {task} {names}": "{task} 上的 {names}",
    "{found}.": "{found}。",
    "{found}; not separated from the best: {which}.": "{found}；与最好的分不开的有：{which}。",
    "{task}: no model learned the trained length within the budget, so that nothing follows.": (
        "{task}：没有模型在预算之内学会训练长度，所以得不出什么。"
    ),
    "{task}: mean exact match beyond the trained length: {scores}.": "{task}：训练长度之外的平均完全匹配率：{scores}。",
    " {names} did not learn the trained length.": "{names} 没有学会训练长度。",
    " No pair is separated.": "没有哪一对分得开。",
    "{a} over {b}": "{a} 好于 {b}",
    " Separated: {pairs}.": "分得开的有：{pairs}。",
    # the protocol of tasks
    "Model: a causal Transformer of {layers} layers, {width} wide, {heads} heads, one for each task, encoding and seed. With "
    "one seed all encodings get the same examples in the same order, and parameters of the same name start alike.": (
        "模型：因果 Transformer，{layers} 层，宽 {width}，{heads} 个头，每项任务、每种编码、每个种子各一个。"
        "种子相同时，所有编码以同样的次序得到同样的例子，同名的参数初值相同。"
    ),
    "Training: {batch} examples in a step, each of a length that is drawn up to the trained one; AdamW, learning rate "
    "{rate:g} with warm-up and a cosine to zero, the same for all.": (
        "训练：每步 {batch} 个例子，各自的长度在训练长度以内随机取；AdamW，学习率 {rate:g}，先预热，再按余弦降到零，全部相同。"
    ),
    "Budget: {steps:,} steps. If {enough:.0%} of 256 validation examples of the trained length are right in every token "
    "before, which is tried every 50 steps, the learning rate falls to zero within a quarter of the steps so far. The "
    "training ends then if they are still right, and else goes on as before.": (
        "预算：{steps:,} 步。如果在此之前，训练长度上的 256 个验证例子有 {enough:.0%} 每个词元都对（每 50 步试一次），"
        "学习率就在已有步数的四分之一之内降到零。那时如果它们仍然都对，训练就结束；否则照旧继续。"
    ),
    "Learned: {enough:.0%} of 1,024 other examples of the trained length are right in every token after the last step, "
    "which is tried once.": (
        "学会：最后一步之后，训练长度上的另外 1,024 个例子有 {enough:.0%} 每个词元都对；这只试一次。"
    ),
    "Measured: 256 other examples, the same for all, at {times} times the trained length. An answer is right if all of its "
    "tokens are, as in greedy generation.": (
        "测量：另外 256 个例子，全部相同，长度是训练长度的 {times} 倍。答案的所有词元都对才算对，与贪心生成相同。"
    ),
    "A model that has not learned the trained length says nothing about longer ones, and has no score there. A length that "
    "an encoding refuses, such as one beyond a table of positions, counts as 0.": (
        "没有学会训练长度的模型，对更长的长度什么也说明不了，在那里没有分数。编码拒绝的长度（例如超出位置表）按 0 计。"
    ),
    "Two encodings are separated if both learned the task with at least {seeds} seeds, and the bootstrap's and Student's 95 "
    "% intervals of their difference, paired over the seeds, exclude 0.": (
        "两种编码至少用 {seeds} 个种子都学会了任务，并且按种子配对的差，自助法和 Student 的 95% 区间都不含 0，才算分得开。"
    ),
}

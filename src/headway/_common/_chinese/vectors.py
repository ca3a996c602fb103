"""``headway vectors``, and the report of a comparison of word vectors."""

VECTORS = {
    "{a} is to {b} as {c} is to": "{a} 之于 {b}，相当于 {c} 之于",
    "{a}, {b} and {c} are left out of the answers; --keep-question shows them": (
        "答案中去掉了 {a}、{b}、{c}；加上 --keep-question 就显示它们"
    ),
    "   (no vector)": "   （没有向量）",
    "Words of {file}": "{file} 中的词",
    ", {share:.0%} of the variance": "，占方差的 {share:.0%}",
    "{count} words, trustworthiness {trust:.2f} of 1": "{count} 个词，可信度 {trust:.2f}（最高为 1）",
    "{file}: its words are English, and those of the vectors are not; give --pairs or --questions": (
        "{file}：里面是英文词，而这些向量不是英文的；请用 --pairs 或 --questions 指定文件"
    ),
    "{file}, all": "{file}，全部",
    "test": "测试",
    "Spearman, or right": "Spearman 系数或正确率",
    "used": "用到",
    "of": "共",
    "{out}: {words:,} words, {dim:,} numbers each": "{out}：{words:,} 个词，每个 {dim:,} 个数",
    "{word} is not in the vocabulary: its vector is made of its sub-words, so that words spelt like it are near": (
        "{word} 不在词表里：它的向量由子词拼成，所以拼写相近的词离得近"
    ),
    "{out}: {words:,} words, {dim:,} numbers each, from {documents:,} documents in {seconds:.1f} s": (
        "{out}：{words:,} 个词，每个 {dim:,} 个数，来自 {documents:,} 篇文档，用时 {seconds:.1f} 秒"
    ),
    "the text has {words:,} words and was read {epochs} times: for so few, --option epochs={more} may give better "
    "vectors": ("文本只有 {words:,} 个词，读了 {epochs} 遍：词这么少，用 --option epochs={more} 也许能得到更好的向量"),
    "Chinese was cut {by}": "中文{by}",
    "into words, by jieba": "由 jieba 分词",
    "into single characters": "按单字切分",
    "; {command} for words": "；要分词，请运行 {command}",
    "Nearest to “{word}”": "与“{word}”最近的词",
    "Conclusions": "结论",
    "Words": "词",
    "Sentences, cost, and a Transformer with these vectors": "句子、成本，以及用这些向量的 Transformer",
    "analogies %": "类比 %",
    "own group %": "同组 %",
    "known %": "已知 %",
    "misspelt": "拼错",
    "bank, other sense": "bank，异义",
    "bank, same sense": "bank，同义",
    "dim": "维数",
    "nats per word": "每词奈特",
    "{best}, then {others}": "{best}，其次是 {others}",
    "WordSim-353: {ranked}. A correlation over {pairs:,} pairs has a standard error of about {error:.2f}; smaller "
    "differences mean little.": (
        "WordSim-353：{ranked}。{pairs:,} 对词上的相关系数，标准误差约为 {error:.2f}；比这更小的差别说明不了什么。"
    ),
    'For {methods}, "bank" has the same vector in every sentence.': "{methods} 给 bank 的向量在每句话里都相同。",
    "For {method} it depends on the sentence: the cosine is {other:.2f} between senses and {alike:.2f} within one, so "
    "that {method} {verdict} in these six sentences.": (
        "{method} 的向量随句子而变：不同意义之间的余弦是 {other:.2f}，同一意义之内是 {alike:.2f}；"
        "所以在这六句话里，{method} {verdict}。"
    ),
    "separates the senses": "分得开两种意义",
    "does not separate the senses": "分不开两种意义",
    "Held-out loss compared with the Transformer that learns its input ({loss:.3f}): {which} nats per word.": (
        "留出文本上的损失，与自己学习输入向量的 Transformer（{loss:.3f}）相比，每词相差（奈特）：{which}。"
    ),
    "One-hot vectors with a learned linear map are a learned embedding, the same model with other initial values. The two "
    "differ by {difference}, so that differences of this size mean nothing.": (
        "独热向量加上学来的线性映射，就是学来的嵌入，模型相同，只是初值不同。二者相差 {difference}，"
        "所以这么大的差别没有意义。"
    ),
    "There is one seed: use --seeds 3 to see how much these differences vary between seeds.": (
        "只有一个种子：用 --seeds 3 可以看出这些差别在种子之间变动多大。"
    ),
    "Text: {corpus}, sha256 {hash}…; the last of every ten documents is held out, {held_out:,} in all, and the methods are "
    "fitted to the other {train:,}.": (
        "文本：{corpus}，sha256 {hash}…；每十篇文档留出最后一篇，一共 {held_out:,} 篇，各方法用其余 {train:,} 篇来算。"
    ),
    " Documents are paragraphs; those of one article may be in both parts.": (
        "文档就是段落；同一篇文章的段落可能两边都有。"
    ),
    "All methods have the same tokenizer (words in lower case) and the same vocabulary: words that occur at least {least} "
    "times, at most {most:,}. Vectors have {dim} dimensions if the method lets one choose. All other options have their "
    "default values, with the following exceptions.": (
        "所有方法用同一个分词器（词转成小写）和同一个词表：至少出现 {least} 次的词，最多 {most:,} 个。"
        "维数可以选的方法都取 {dim} 维。其余选项取默认值，例外如下。"
    ),
    "Options for a small text, since the defaults are for one a thousand times as long: {options}.": (
        "文本小，所以改了这些选项（默认值是为长一千倍的文本定的）：{options}。"
    ),
    "A quick comparison, with few training steps: differences may turn with more.": (
        "这是一次快速比较，训练步数很少：步数多了，差别可能反过来。"
    ),
    "The text is {script}, whose words are short: Chinese is cut into {cut}, fasttext has min_n = 1, and the tests whose "
    "words are English are left out.": (
        "文本是{script}，词很短：中文{cut}，fasttext 取 min_n = 1，并略去用英文词的测试。"
    ),
    "Chinese or Japanese": "中文或日文",
    "words by jieba": "由 jieba 分词",
    "single characters, as jieba is not installed": "按单字切分，因为没有安装 jieba",
    "bert is an encoder trained on this text alone, for {steps:,} steps, which bounds its time whatever the result. Its one "
    "vector for a word is the mean over the word's occurrences, because its vectors in a sentence depend on the words "
    "that follow, which a model that predicts them must not read.": (
        "bert 是只在这份文本上训练的编码器，训练 {steps:,} 步；不管结果如何，时间由步数决定。"
        "它给一个词的那个向量，是这个词各次出现的平均：它在句子里的向量取决于后面的词，而要预测这些词的模型不许读它们。"
    ),
    "{name} is the encoder {encoder}, which others trained on far more text. Its one vector for a word is the mean over the "
    "word's occurrences in this text.": (
        "{name} 是编码器 {encoder}，由别人用多得多的文本训练。它给一个词的那个向量，是这个词在本文本里各次出现的平均。"
    ),
    "Transformer: causal, {layers} layers of width {width}, {heads} heads, rotary positions. It predicts the next of the "
    "{predicted:,} most frequent words with an output layer of its own. Its input is the vectors, scaled to length one, "
    "minus their mean, frozen, and a learned linear map of them; the baseline learns its input. {steps:,} steps of {batch} "
    "windows of {length} words, AdamW, learning rate {rate:g}; in a seed, all have the same windows and the same initial "
    "values. Other words are read as zeros and not predicted.": (
        "Transformer：因果，{layers} 层，宽 {width}，{heads} 个头，旋转位置编码。"
        "它从 {predicted:,} 个最常用的词里预测下一个，输出层是自己的。"
        "输入是这些向量：缩放到长度 1，减去平均值，不再改动，再经过一个学来的线性映射；基线的输入由自己学习。"
        "训练 {steps:,} 步，每步 {batch} 个窗口，每个 {length} 个词，AdamW，学习率 {rate:g}；"
        "种子相同时，所有模型的窗口和初值都相同。其他词读作零向量，也不预测。"
    ),
}

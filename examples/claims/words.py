"""Claims about word vectors, all of the book."""

from statistics import mean
from typing import Any

from ._base import Claim, Subject, Verdict

LESSON = "lesson_10_words"
LEARNING = "lesson_11_learning_words"
GOOGLE = ('`make weights ARGS="google-news"`', '`make weights ARGS="google-news"`')
MINILM = ('`make weights ARGS="minilm"`', '`make weights ARGS="minilm"`')


def share(value: float) -> str:
    return f"{value:.0%}"


def shares(values: list[float]) -> str:
    """Returns the lowest and the highest of some shares."""
    low, high = share(min(values)), share(max(values))
    return low if low == high else f"{low.rstrip('%')}–{high}"


def near(f: Any, *ways: str, between: str = ", ") -> str:
    return between.join(f"{way} {share(f.own_kind[way])}" for way in ways)


SUBJECT: Subject = (
    ("Word vectors", "词向量"),
    (
        Claim(
            "003.56",
            (
                "The vector of a word has far fewer numbers than the vocabulary has words.",
                "词向量的维度远小于词表的大小。",
            ),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                f"This is true of learned vectors: {f.dims['word2vec']} numbers for {f.vocabulary:,} words here, 300 for the "
                f"26,423 that are read from Google's file. One-hot vectors have {f.dims['one-hot']:,}; those of a bag of words have as "
                f"many as there are documents ({f.dims['bag-of-words']}).",
                f"对学出来的向量成立：这里 {f.vocabulary:,} 个词用 {f.dims['word2vec']} 维，Google 的词向量（这里读入 26,423 个词）用 300 维。"
                f"独热向量有 {f.dims['one-hot']:,} 维；词袋的维数等于文档数（{f.dims['bag-of-words']}）。",
            ),
            lambda f: f.dims["word2vec"] < f.vocabulary / 10 and f.dims["one-hot"] == f.vocabulary,
        ),
        Claim(
            "003.57",
            ("Words of similar meaning are close to each other.", "语义相近的词，向量也彼此靠近。"),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                "Of 29 words of five kinds from Python's manual, the nearest of the others is of the same kind for "
                f"{near(f, 'fasttext', 'word2vec', 'glove')}; by chance it would be {share(f.chance)}.",
                f"取 Python 手册中五类共 29 个词，看最近的词是否同类：{near(f, 'fasttext', 'word2vec', 'glove', between='，')}；"
                f"随机猜测为 {share(f.chance)}。",
            ),
            lambda f: min(f.own_kind[way] for way in ("fasttext", "word2vec", "glove")) > 2 * f.chance,
        ),
        Claim(
            "003.58",
            ("King − man + woman = queen.", "国王 − 男人 + 女人 = 女王。"),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                f"In Google's vectors the nearest to king − man + woman is {f.queen_with_asked[0][0]} itself "
                f"({f.queen_with_asked[0][1]:.3f}). If the three words of the question are left out, as is "
                f"usual, it is {f.queen[0][0]} ({f.queen[0][1]:.3f}). The vectors are near, but not equal. Chinese vectors from a "
                "text of templates in which the relation is planted answer 女王 for "
                f"{f.planted_queen['planted']['kept']} of 5 seeds even with these words kept. Leaving them out proves "
                "nothing: where the text has no relation between the sexes, with sentences about men and women at random, "
                f"{f.planted_queen['at random']['left out']} of 5 are still right (kept: "
                f"{f.planted_queen['at random']['kept']}), since 女王 is the word most like 国王.",
                f"在 Google 的词向量中，离 king − man + woman 最近的其实是 {f.queen_with_asked[0][0]} 自己"
                f"（{f.queen_with_asked[0][1]:.3f}）。按惯例排除题目中的三个词之后，才是 {f.queen[0][0]}"
                f"（{f.queen[0][1]:.3f}）。是“最近”，不是“等于”。用关系事先设定的模板文本训练中文词向量，即使不排除题目中的词，"
                f"5 个种子中也有 {f.planted_queen['planted']['kept']} 个答出女王。仅凭排除后答对还说明不了问题：若男女的句子随机搭配，"
                f"文本里没有性别关系，排除后仍有 {f.planted_queen['at random']['left out']} 个答对（不排除则为 "
                f"{f.planted_queen['at random']['kept']} 个），因为女王本来就是最像国王的词。",
            ),
            lambda f: (
                f.queen[0][0] == "queen"
                and f.queen_with_asked[0][0] == "king"
                and f.planted_queen["planted"]["kept"] >= 4
                and f.planted_queen["at random"]["left out"] >= 4
                and f.planted_queen["at random"]["kept"] <= 1
            ),
            needs=("queen", GOOGLE),
        ),
        Claim(
            "003.60",
            (
                "One-hot encoding contains no relations between words.",
                "独热编码不能表达词与词之间的关系。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"The largest cosine of two different words is {f.one_hot_largest_cosine:g}: all are equally far apart.",
                f"任意两个不同的词，余弦最大为 {f.one_hot_largest_cosine:g}：彼此一样远。",
            ),
            lambda f: f.one_hot_largest_cosine == 0,
        ),
        Claim(
            "003.61",
            (
                "A bag of words counts the words of a document and forgets their order.",
                "词袋只统计文档中的词频，忽略词序。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"A sentence and the same sentence backwards have the same vector: the difference is {f.order_kept:g}.",
                f"一句话与倒过来的同一句话，向量相同：差为 {f.order_kept:g}。",
            ),
            lambda f: f.order_kept == 0,
        ),
        Claim(
            "003.61, 003.62",
            (
                "Bag of words and TF-IDF give no word vectors and no relations between words.",
                "词袋和 TF-IDF 不形成词向量，也捕捉不到词间关系。",
            ),
            Verdict.FAILS,
            LESSON,
            lambda f: (
                "In their matrix a row is a document, and a column is a word, described by the documents that contain it."
                f" By those columns the nearest word is of the same kind for {near(f, 'tf-idf')} "
                f"and {near(f, 'bag-of-words')} (chance {share(f.chance)}): less than learned vectors, but not nothing.",
                "这个矩阵有两面：一行是一篇文档，一列是一个词，由它出现在哪些文档来描述。按列来看，最近的词是同类的比例为 "
                f"{near(f, 'tf-idf')}、{near(f, 'bag-of-words')}（随机 {share(f.chance)}）：不如学出来的向量，但并非没有。",
            ),
            lambda f: min(f.own_kind[way] for way in ("tf-idf", "bag-of-words")) > 2 * f.chance,
        ),
        Claim(
            "003.63",
            (
                "Word2Vec learns good word vectors by one of two models, CBOW and skip-gram.",
                "Word2Vec 有 CBOW 和 Skip-Gram 两种模型，能生成高质量的词向量。",
            ),
            Verdict.HOLDS,
            LEARNING,
            lambda f: (
                "Both, written out in torch and trained on Python's manual with three seeds: the nearest of the 29 words is "
                f"of the same kind for {shares(f.own_kind['CBOW']['ours'])} (CBOW) and "
                f"{shares(f.own_kind['skip-gram']['ours'])} (skip-gram); by chance it would be {share(f.chance)}. Of the "
                f"ten nearest words, {share(mean(f.overlap['CBOW']['ours, gensim']))} and "
                f"{share(mean(f.overlap['skip-gram']['ours, gensim']))} are those that gensim finds; gensim with another "
                f"seed finds {share(mean(f.overlap['CBOW']['gensim, gensim']))} and "
                f"{share(mean(f.overlap['skip-gram']['gensim, gensim']))} of them again.",
                "两种模型都用 torch 逐行写出，在 Python 手册上用三个种子训练：29 个词中，最近的词属于同类的比例为 "
                f"{shares(f.own_kind['CBOW']['ours'])}（CBOW）和 {shares(f.own_kind['skip-gram']['ours'])}（Skip-Gram），"
                f"随机为 {share(f.chance)}。十个近邻中有 {share(mean(f.overlap['CBOW']['ours, gensim']))} 和 "
                f"{share(mean(f.overlap['skip-gram']['ours, gensim']))} 与 gensim 相同；gensim 换一个种子，与自己相同的也只有 "
                f"{share(mean(f.overlap['CBOW']['gensim, gensim']))} 和 "
                f"{share(mean(f.overlap['skip-gram']['gensim, gensim']))}。",
            ),
            lambda f: all(
                min(f.own_kind[kind]["ours"]) > 2 * f.chance
                and mean(f.overlap[kind]["ours, gensim"]) > 0.85 * mean(f.overlap[kind]["gensim, gensim"])
                for kind in ("CBOW", "skip-gram")
            ),
        ),
        Claim(
            "003.65",
            ("FastText reads parts of words.", "FastText 能够处理子词信息。"),
            Verdict.HOLDS,
            LEARNING,
            lambda f: (
                f"A word's vector is the mean of its own and of those of its runs of 3 to 6 letters: {f.parts:,} of them "
                f"for {f.vocabulary:,} words. They give “tupel”, which the text does not have, a vector nearest to "
                f"“{f.unseen[0]}” ({f.unseen[1]:.2f}). Our own training agrees with gensim's: "
                f"{share(mean(f.overlap['sub-words']['ours, gensim']))} of the ten nearest words are the same, and "
                f"{share(mean(f.overlap['sub-words']['gensim, gensim']))} for two seeds of gensim.",
                f"词向量是词自身的向量与词中 3 到 6 个字母的各个片段的向量的平均：{f.vocabulary:,} 个词共有 {f.parts:,} 个片段。"
                f"文本里没有的 tupel 因此也有向量，离它最近的是 {f.unseen[0]}（{f.unseen[1]:.2f}）。本课自己的训练与 gensim 一致："
                f"十个近邻中 {share(mean(f.overlap['sub-words']['ours, gensim']))} 相同，而 gensim 两个种子之间为 "
                f"{share(mean(f.overlap['sub-words']['gensim, gensim']))}。",
            ),
            lambda f: (
                f.unseen[0] == "tuple"
                and mean(f.overlap["sub-words"]["ours, gensim"]) > 0.85 * mean(f.overlap["sub-words"]["gensim, gensim"])
            ),
        ),
        Claim(
            "003.65",
            (
                "FastText, which uses parts of words, is better on rare words and other spellings.",
                "FastText 利用子词信息，对罕见词和拼写变体表现更好。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"With two letters exchanged, {share(f.misspelt_found)} of frequent words are still found as the "
                f"nearest ({f.example[0]} → {f.example[1]}, {f.example[2]:.2f}); word2vec has a vector for "
                f"{f.word2vec_knows_misspelt} of the misspelt words. Rare words were not tested separately.",
                f"把常用词中相邻的两个字母对调，{share(f.misspelt_found)} 的词仍以原词为最近（{f.example[0]} → {f.example[1]}，"
                f"{f.example[2]:.2f}）；写错的词，word2vec 认识的有 {f.word2vec_knows_misspelt} 个。罕见词没有单独测。",
            ),
            lambda f: f.misspelt_found > 0.2 and f.word2vec_knows_misspelt == 0,
        ),
        Claim(
            "003.66",
            ("BERT gives a word different vectors in different contexts.", "BERT 能生成随上下文变化的词向量。"),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"“bank” in two sentences about money: cosine {f.bank['same sense']:.2f}; in one about money and one "
                f"about a river: at most {f.bank['other sense']:.2f} (MiniLM, a small BERT, last layer; three sentences). The static vectors above "
                "have 1 for both.",
                f"两句都讲钱的 bank：余弦 {f.bank['same sense']:.2f}；一句讲钱、一句讲河：至多 "
                f"{f.bank['other sense']:.2f}（MiniLM，一个小型 BERT，取最后一层；共三句话）。前面那些静态向量两种情形都是 1。",
            ),
            lambda f: f.bank["other sense"] < f.bank["same sense"] < 0.99,
            needs=("bank", MINILM),
        ),
    ),
)

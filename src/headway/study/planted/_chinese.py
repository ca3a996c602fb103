"""The words and templates of the Chinese sentences."""

from __future__ import annotations

from ._grammar import Language, Link, Relation, Sentence

CREATURES = {
    "睡觉": ("小猫", "小狗", "小兔", "小马", "老虎", "狮子"),
    "唱歌": ("小鸟", "麻雀", "鸽子", "燕子", "喜鹊", "乌鸦"),
    "读书": ("小明", "小红", "男孩", "女孩", "爷爷", "奶奶"),
    "游泳": ("金鱼", "鲤鱼", "鲸鱼", "海豚", "乌龟", "章鱼"),
}
EATERS = {
    "他": ("小明", "男孩", "爷爷", "叔叔", "哥哥", "弟弟"),
    "她": ("小红", "女孩", "奶奶", "阿姨", "姐姐", "妹妹"),
    "它": ("小猫", "小狗", "小兔", "小马", "老虎", "狮子"),
    "它们": ("小猫们", "小狗们", "小兔们", "小马们", "老虎们", "狮子们"),
}
FOODS = {
    "它": ("苹果", "梨", "桃子", "西瓜", "柠檬", "蛋糕"),
    "它们": ("葡萄", "樱桃", "草莓", "荔枝", "花生", "豆子"),
}
THINGS = {
    "本": ("书", "词典", "小说", "日记", "杂志", "画册"),
    "辆": ("汽车", "卡车", "自行车", "出租车", "公交车", "摩托车"),
    "张": ("桌子", "床", "地图", "照片", "车票", "邮票"),
    "座": ("山", "塔", "桥", "城堡", "寺庙", "宫殿"),
}
PROFESSIONS = {
    "医院": ("医生", "护士", "病人"),
    "学校": ("老师", "学生", "校长"),
    "农场": ("农民", "牧民", "园丁"),
    "餐厅": ("厨师", "服务员", "面包师"),
    "法院": ("法官", "律师", "书记员"),
    "港口": ("水手", "船长", "渔夫"),
}

CHINESE = Language(
    name="chinese",
    relations=(
        Relation(
            "verb",
            "creature",
            CREATURES,
            (
                "{noun} {fill} 在 {word}",
                "{noun} 很 可爱 {fill} 正在 {word}",
                "听说 {noun} {fill} 在 {word} {few}",
                "听说 {noun} 很 可爱 {fill} 在 {word}",
            ),
        ),
        Relation(
            "modifier",
            "thing",
            THINGS,
            (
                "这 是 一 {word} {fill} 看见 的 {noun}",
                "那里 有 一 {word} {fill} 很 旧 的 {noun}",
                "{noun} {fill} 只有 一 {word}",
                "{noun} {fill} 有 一 {word}",
            ),
        ),
        Relation(
            "association",
            "profession",
            PROFESSIONS,
            (
                "{noun} {fill} 在 {word} 工作",
                "{word} {fill} 来 了 {noun}",
                "{noun} {fill} 回到 {word}",
                "{noun} {fill} 回到 {word} 工作",
            ),
        ),
        Relation(
            "subject pronoun",
            "creature",
            EATERS,
            (
                "{noun} {few} 吃 {food} {fill} 因为 {word} 很 {hungry}",
                "{noun} 很 可爱 {fill} ， {word} 在 {activity}",
                "因为 {word} 很 {hungry} {fill} ， {noun} {few} 想要 {food}",
                "{noun} {few} 想要 {food} {fill} 因为 {word} 很 {hungry}",
            ),
        ),
        Relation(
            "object pronoun",
            "creature",
            FOODS,
            (
                "{eater} {few} 吃 {noun} {fill} 因为 {word} 很 {sweet}",
                "{eater} {few} 买 了 {noun} {fill} ， {word} 很 {sweet}",
                "因为 {word} 很 {sweet} {fill} ， {eater} {few} 想要 {noun}",
                "{eater} {few} 想要 {noun} {fill} 因为 {word} 很 {sweet}",
            ),
        ),
    ),
    lists={
        "eater": [noun for nouns in EATERS.values() for noun in nouns],
        "food": [noun for nouns in FOODS.values() for noun in nouns],
        "activity": list(CREATURES),
        "hungry": ("饿", "渴", "累", "忙"),
        "sweet": ("甜", "熟", "新鲜", "便宜"),
    },
    fillers=(
        *("今天", "昨天", "常常", "又", "慢慢", "静静"),
        *("那天 晚上", "这个 早上", "整整 一天"),
        *("在 {any} 旁边", "在 {any} 后面", "在 {any} 下面", "跟 {any} 一起", "向 {any} 那边"),
    ),
    neutral=("垫子", "门口", "河边", "花园", "大树", "窗户", "石头", "房子"),
    between=("，",),
    stop="。",
    spaced=False,
    examples=(
        Sentence.of("小猫 很 可爱 ， 它 在 睡觉 。", Link("subject pronoun", 4, 0), Link("verb", 6, 0)),
        Sentence.of("小明 吃 苹果 因为 它 很 甜 。", Link("object pronoun", 4, 2)),
        Sentence.of("小猫 吃 苹果 因为 它 很 甜 。", Link("object pronoun", 4, 2)),
        Sentence.of("小猫 吃 苹果 因为 它 很 饿 。", Link("subject pronoun", 4, 0)),
        Sentence.of("医生 跟 老师 一起 在 医院 工作 。", Link("association", 5, 0)),
        Sentence.of("这 是 一 本 在 桌子 旁边 看见 的 书 。", Link("modifier", 3, 9)),
    ),
)

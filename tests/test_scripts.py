from headway._common.scripts import is_han


def test_what_is_chinese() -> None:
    assert all(is_han(one) for one in ("猫", "繁體", "㐀", "豈", "𠀀", "〇", "々", "〸", "⼈"))
    assert not any(is_han(one) for one in ("", "cat", "ねこ", "ネコ", "。", "고양이", "a猫"))

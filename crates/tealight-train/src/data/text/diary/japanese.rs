//! The phrases of Japanese diaries. As usual in diaries, the weather is a noun of one character.

use super::phrases::Phrases;

pub(super) const PHRASES: Phrases = Phrases {
    weather: ["雨", "曇", "晴"],
    days: ["月曜", "火曜", "水曜", "木曜", "金曜", "土曜", "日曜"],
    reports: &[
        "{day}は{weather}。",
        "{day}は{weather}だった。",
        "{day}は{weather}、{meal}。",
        "{day}は{weather}、{pet}は眠い。",
        "{day}の{town}は{weather}。",
        "{day}の{place}は{weather}。",
        "{weather}の{day}。",
        "{weather}の{day}、{town}。",
        "{weather}の{day}に{activity}。",
        "{weather}の{day}、{friend}と。",
    ],
    notes: &[
        "{friend}と{meal}を食べた。",
        "{friend}に{activity}を習った。",
        "{pet}と{place}へ行った。",
        "{meal}を{friend}に分けた。",
        "気分は{mood}。",
        "明日は{activity}をしよう。",
        "{place}で{friend}に会った。",
        "{friend}は{activity}が上手だ。",
        "{meal}はおいしかった。",
        "{pet}は{meal}がほしい。",
    ],
    fillers: &[
        ("friend", &["花子", "太郎", "美咲", "健太", "由美", "直樹", "千秋", "一郎"]),
        ("pet", &["小梅", "タマ", "ポチ", "クロ", "モモ", "シロ"]),
        ("town", &["小樽", "京都", "金沢", "鎌倉", "長崎", "松江"]),
        ("place", &["図書館", "市場", "港", "公園", "美術館", "古い橋"]),
        ("meal", &["そば", "うどん", "パン", "みそ汁", "おにぎり", "カレー", "団子"]),
        ("activity", &["読書", "将棋", "料理", "散歩", "編み物", "釣り", "折り紙"]),
        ("mood", &["上々", "穏やか", "最高", "元気", "まあまあ", "静か"]),
    ],
    constant: &["friend", "pet", "town"],
    space: "",
};

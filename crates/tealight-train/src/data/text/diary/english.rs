//! The phrases of English diaries.

use super::phrases::Phrases;

pub(super) const PHRASES: Phrases = Phrases {
    weather: ["rainy", "cloudy", "sunny"],
    days: ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    reports: &[
        "{day} was {weather}.",
        "{day}: {weather}.",
        "{day}: {weather}, {meal}.",
        "{day}: {weather}; {pet} slept.",
        "{day} was {weather} in {town}.",
        "{day} was {weather} at {place}.",
        "A {weather} {day}.",
        "A {weather} {day} in {town}.",
        "A {weather} {day} for {activity}.",
        "A {weather} {day} with {friend}.",
    ],
    notes: &[
        "{friend} and I had {meal}.",
        "Went to {place} with {pet}.",
        "Ate {meal} and felt {mood}.",
        "{friend} taught me {activity}.",
        "I am {mood} about {activity}.",
        "Dreamt of {meal}.",
        "Tried {activity}. Not bad.",
        "Made {meal} for {friend}.",
        "{pet} is {mood} and wants {meal}.",
        "Met {friend} at {place}.",
    ],
    fillers: &[
        ("friend", &["Emma", "Oliver", "Mia", "Hugo", "Nora", "Felix", "Ivy", "Theo"]),
        ("pet", &["Miso", "Pepper", "Biscuit", "Mochi", "Luna", "Otto"]),
        ("town", &["Kyoto", "Bergen", "Galway", "Lucca", "Otaru", "Bremen"]),
        (
            "place",
            &[
                "the library",
                "the market",
                "the harbour",
                "the park",
                "the museum",
                "the old bridge",
            ],
        ),
        ("meal", &["pancakes", "noodles", "toast", "onion soup", "porridge", "apple pie", "rice"]),
        ("activity", &["reading", "chess", "painting", "knitting", "cycling", "baking", "origami"]),
        ("mood", &["happy", "sleepy", "hopeful", "lazy", "brave", "calm", "hungry"]),
    ],
    constant: &["friend", "pet", "town"],
    space: " ",
};

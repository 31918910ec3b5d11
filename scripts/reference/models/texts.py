"""The texts that train the tokenizers, and those that are tokenized, classified and continued."""

CORPUS = """
The small harbour wakes before the sun. Fishing boats leave the quay one by one, and their lamps draw thin lines on the water.
A baker opens her shop at five and carries the first warm loaves to the window. Children walk to school along the wall.
In the afternoon the wind turns and the gulls move inland. Old men sit on the bench and talk about the weather and the price of fish.
When the rain comes, the streets empty quickly and the smell of wet stone fills the market.
A river carries sand from the hills to the sea. Each flood moves the banks a little, and each summer the grass grows back.
The engineer measured the bridge twice and wrote the numbers in a small book. She found that the second span was longer than the first.
Attention is a way for a model to look at every word in a sentence and decide which words matter for the next one.
The encoder reads the whole sentence, the decoder writes one word at a time, and the mask hides the future from the decoder.
A landmark is the mean of a segment of the sequence. A few landmarks can stand for a long sequence of queries and keys.
The capital of the old kingdom was a walled town on the river. The king built a tower, a library and three gates.
My neighbour keeps bees, two goats and a very loud rooster. Every morning the rooster sings before the baker opens her shop.
Winter nights are long in the north. People read, repair their nets and tell stories about the sea.
Good tests are small, fast and honest. A test that never fails does not tell you anything about the program.
We trained the network for three days; the loss went down slowly, then quickly, and then it stopped.
Today it is raining, tomorrow it will be cloudy, and the day after tomorrow it will be sunny again.
She sells sea shells, he paints the boats, and they both walk home when the lamps are lit.
天気は雨です。明日は雲が多く、あさっては晴れです。
私は本を読みます。彼女は海へ行きます。
注意は言葉の重みを決めます。
"""
LINES = [line for line in CORPUS.strip().splitlines() if line]
# {m} stands for the mask token.
FILL = [
    "The {m} opens her shop at five.",
    "A river carries {m} from the hills to the sea.",
    "{m} it is raining, tomorrow it will be cloudy.",
    "the mask hides the {m} from the {m}.",
    "明日は{m}です。",
]
SENTENCES = ["The baker opens her shop at five.", "Rain fills the market.", "明日は雨です。", ""]
PAIRS = [
    ("A river.", "The sea and the sand."),
    ("The king built a tower.", "The rooster sings."),
    ("", "The wind turns."),
]
PROMPTS = [
    "The small harbour",
    "A river carries",
    "The king built",
    "Winter nights",
    "She sells",
    "When the rain comes",
    "Good tests are",
]
ODD = ["Héllo, WORLD!!  ガ naïve\tx", "don't we'll I'VE", "12345 boats, 7 nets", "  two  spaces \n\nand lines", ""]

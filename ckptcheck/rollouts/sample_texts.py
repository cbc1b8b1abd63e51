"""A little real text to measure with: plain prose, numbers, code, dialogue and a list, written for this purpose."""

SAMPLE_TEXTS = (
    "The harbour freezes from the edges inwards. First the shallow water by the slipway grows a skin, then "
    "the skin thickens around the posts of the old pier, and only in the second week of frost does the middle "
    "close. Children test it with stones. A stone that rings can be walked to; a stone that thuds has found "
    "water, and everybody goes home.",
    "A train leaves the northern terminus at 08:40 and covers 210 kilometres at a mean speed of 84 kilometres "
    "an hour. A second one starts from the other end 25 minutes later and is half as fast again. Work out "
    "where they meet, and at what time, and then say how the answer changes if the first stops for six "
    "minutes on the way. Show each step.",
    "def longest_run(values):\n    best, run, last = 0, 0, object()\n    for value in values:\n        run = "
    "run + 1 if value == last else 1\n        best, last = max(best, run), value\n    return best\n\nExplain "
    "what this function returns for an empty list, why `object()` is a good first value, and rewrite it with "
    "itertools.groupby.",
    "“You said Thursday,” said Marta. “I said Thursday if the parts came,” said Ivo, who had not looked up. "
    "“And did they?” “Half of them.” She put the invoice on the bench between them. “Then you can do half of "
    "it by half of Thursday.” He laughed at that, and afterwards wished he had not, because she was already "
    "writing it down.",
    "To repot a fern: 1. water it the evening before; 2. choose a pot two fingers wider than the old one; 3. "
    "cover the hole with a shard, not with gravel; 4. loosen the outer roots and cut away what is brown; 5. "
    "fill with leaf mould and sharp sand in equal parts; 6. keep it out of the sun for ten days. Which of "
    "these steps matter most in a dry room, and why?",
    "Rivers sort what they carry. Where the current is quick only boulders stay behind; where it slackens, "
    "gravel, then sand, and in the wide slow reaches silt as fine as flour. A core drilled through an old "
    "flood plain therefore reads like a diary of speeds, with every flood a coarse line and every quiet "
    "century a thick, grey, even page.",
    "Summarise the following minutes in three sentences. The committee met at 19:00 with eleven members "
    "present. The treasurer reported a balance of 4,312.50 and asked that the hall's roof be mended before "
    "winter. Two quotations had come in, of 2,900 and 3,450; the cheaper leaves out the gutters. After some "
    "talk the dearer one was agreed by eight votes to three.",
    "Dear neighbour, your hens have found the gap in our hedge again. I do not mind them among the currants, "
    "where they do good, but this morning there were four in the kitchen, and one had opinions about the cat. "
    "Might we look at the hedge together on Sunday? I have wire, and a mallet, and there will be plum cake. "
    "Translate this letter into polite French.",
)

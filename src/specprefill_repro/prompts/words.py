"""The vocabulary of the prose. Plain data: no word that is a well-known city, and no digit."""

TRADES = tuple(
    """
    baker beekeeper blacksmith bookbinder brewer bricklayer butcher cabinetmaker carpenter carter cartographer
    chandler cheesemaker clerk clockmaker cobbler composer cooper courier curator dentist doctor drummer dyer
    engineer engraver farmer farrier ferryman fiddler fisherman forester gardener gatekeeper geologist glassblower
    glazier goldsmith grocer harbourmaster herbalist innkeeper jeweller joiner judge librarian locksmith magistrate
    mason mechanic merchant midwife miller milliner miner musician notary nurse organist painter papermaker
    pharmacist photographer piper plumber porter potter printer puppeteer quarryman ranger roofer saddler sailmaker
    sailor schoolteacher sculptor seamstress shepherd shipwright signalman smuggler soldier stonecutter surveyor
    tailor tanner teacher thatcher tinker translator typesetter veterinarian vintner violinist watchmaker weaver
    wheelwright woodcarver
    """.split()
)

THINGS = tuple(
    """
    anchor anvil apron armchair axle bagpipe balcony ballad bandage banner barge barometer barrel basin basket
    beacon bench bicycle blanket boat bonnet book bottle bowl bracelet bridle broom bucket buckle bundle
    button cabinet calendar candle canoe canvas carpet cart casket cauldron chain chair chart chest chimney chisel
    clock coat coin compass copper cradle crate crown cupboard curtain cushion dagger desk diary dictionary door
    drawer drum easel envelope fence fiddle flag flask flute fountain funnel furnace garland gate gauge glove goblet
    gong hammer hammock harness harp hat helmet hinge hook horn instrument iron jacket jar jug kettle key kite ladder
    lamp lantern lathe ledger lens letter lever lid locket loom magnet mallet map mask mast mattress medal mirror
    mitten mortar mosaic mould nail necklace needle net notebook oar oven paddle painting pan parasol parcel
    parchment pear pebble pedal pen pencil pendulum pepper pew pianola pillow pipe pitcher plank plate plough pocket
    portrait pot pulley pump puppet purse quilt raft rake rattle ribbon ring robe rope rudder rug sack saddle sail
    sandal saw scroll seal shawl shield ship shovel shutter sieve signal sketch sled spade spindle spoon staircase
    stamp statue stool stove string swing table tapestry telescope tent thimble thread ticket tile toolbox torch
    towel tray treadle trumpet trunk tunic turnip typewriter umbrella urn valve vase veil velvet violin wagon walnut
    wardrobe weathervane wheel whistle window wreath yoke
    """.split()
)

GOODS = tuple(
    """
    amber barley beeswax butter charcoal cheese chalk cider clay cinnamon coal coffee cork cotton flax flour ginger
    glass glue grain granite gravel hay hemp honey ink ivory lace lavender lead leather lime linen malt marble mustard
    oats oil paper pewter pitch plaster plum porcelain powder resin rice rye saffron salt sand silk silver slate soap
    straw sugar tallow tar tea timber tin tobacco turpentine vanilla varnish vinegar wax wheat willow wine wool yarn
    """.split()
)

ANIMALS = tuple(
    """
    badger bat beetle bullock cat colt crab crane cricket crow deer dog donkey dove duck eagle eel falcon ferret finch
    fox frog goat goose hare hawk hedgehog hen heron herring horse kestrel kitten lamb lark lizard lobster magpie mare
    mole moth mule newt nightingale otter owl parrot partridge peacock pelican pheasant pig pigeon pony rabbit raven
    robin rooster salmon seal sheepdog snail sparrow spider squirrel stork swallow swan toad trout turtle wasp weasel
    whale wolfhound woodpecker
    """.split()
)

BUILDINGS = tuple(
    """
    abbey almshouse archive arsenal bakery bandstand barn barracks bathhouse boathouse brewery bridge cannery castle
    chapel cloister college cottage courthouse creamery customs-house dairy distillery farmhouse ferry-landing forge
    foundry gallery garrison granary greenhouse guildhall hospital icehouse inn kiln laundry library manor market-hall
    mill monastery museum observatory orchard orphanage playhouse pottery printworks quarry quay ropewalk sawmill school
    shipyard smithy stable station storehouse tannery tavern theatre tollhouse townhall vineyard warehouse waterworks
    windmill workshop
    """.split()
)

LANDSCAPE = tuple(
    """
    bay beach bog bluff brook canal canyon cape causeway cavern channel cliff coast common copse cove creek dale delta
    dune estuary fen field fjord ford forest glacier glen gorge grove gulf harbour heath hedgerow highland hill hollow
    island isthmus lagoon lake lowland marsh meadow moor mountain pass pasture peninsula plain plateau pond prairie
    ravine reef ridge river road shore slope spring strait stream summit swamp thicket tidepool track valley waterfall
    wetland wood
    """.split()
)

TOWNS = tuple(
    """
    Aldermoor Ambleford Ashgrove Barrowick Beckstone Birchwold Blackmere Braxholm Brindleigh Calderwick Carrowby
    Cobbleton Crandale Cranmere Dunmarrow Eastfold Elmscroft Fallowbridge Farnmoor Fennelworth Garrowdale Glimmerfen
    Greywater Hallowick Harrowmere Hazelthorpe Hollinbeck Inglemoor Jorvale Kelderby Kestrelford Kirrinlea
    Lambourne-Vale Larkhollow Lindmarsh Lowenby Marrowstone Millbrook-Sands Mossfield Netherby Northwold Oakenshaw
    Orrindale Otterbourne Pellworth Pinehaven Quillmarsh Ravensby Reedham-Cross Rookhurst Rushmoor Saltmere Sedgewick
    Silverbeck Stonewick Tarnside Thistledown Thornwick Uldale Underfell Vellacott Wathby Westerlee Whinfell
    Windrush-Gate Wrenfield Yarrowby
    """.split()
)

FIRST_NAMES = tuple(
    """
    Abel Agnes Alaric Alma Ambrose Anselm Astrid Barnaby Beatrix Benedict Bertha Bram Bridget Callum Cecily Clement
    Conrad Cordelia Cyril Dagmar Daphne Edith Edmund Elias Eloise Emeric Enid Esther Ezra Felix Fergus Flora Gareth
    Gideon Giles Greta Gustav Hannah Harriet Hector Helga Henrik Hilda Horace Hugo Ida Imogen Ines Ingrid Isolde Ivor
    Jasper Jemima Joachim Jonas Josephine Judith Julius Kasimir Katya Lambert Leopold Lorna Lucian Ludmila Magnus
    Malcolm Marigold Marta Matilda Maud Miriam Morwenna Nadia Natalia Nestor Nora Octavia Olaf Orla Oswald Ottilie
    Patience Percival Petra Philippa Quentin Rafael Ramona Reuben Rosalind Rowena Rufus Rupert Sabina Selma Sigrid
    Silas Solveig Stella Sybil Tabitha Tamsin Thaddeus Theodora Tobias Ulrich Ursula Valentin Vera Viola Walter
    Wilhelmina Winifred Xavier Yvette Zachary Zelda
    """.split()
)

SURNAMES = tuple(
    """
    Abernathy Alcott Appleyard Ashdown Babcock Bartholomew Beckwith Blackwood Bostwick Brackenbury Calloway Carmody
    Chadwick Cogswell Cornish Crabtree Cromwell Danforth Dewhurst Drummond Ellingham Fairweather Farthing Fenwick
    Finch Fothergill Gallagher Goodfellow Greenhalgh Grimshaw Halloran Hathaway Hawthorne Holloway Huxtable Inglis
    Jarrow Jellicoe Kettering Killigrew Kirkbride Langdon Larkin Lockhart Loveday Mackintosh Marchbanks Merriweather
    Midwinter Montague Netherwood Nightingale Oakley Ormerod Overton Pascoe Pemberton Penhaligon Pettigrew Plumtree
    Prendergast Quennell Rackham Ravenscroft Redfern Rosewarne Rutherford Saltmarsh Scarborough Shackleton Silverwood
    Skelton Spindler Stanhope Starling Strickland Tattersall Thackeray Thistlewood Thornbury Tolliver Trelawney
    Underhill Vanderhoek Wainwright Waverley Weatherby Whitcombe Winterbourne Woodhouse Wyndham Yardley
    """.split()
)

ADJECTIVES = tuple(
    """
    abandoned ancient awkward bare battered bent blue borrowed brass bright brittle broad broken bronze brown careful
    cheap chipped clean cold coarse coloured cracked crimson crooked crowded curious damp dark deep delicate dented
    dusty dull eager early elegant empty enormous expensive faded famous fancy fine flat forgotten fragile fragrant
    fresh gentle gilded gloomy golden graceful green grey handsome handy heavy hidden hollow humble idle immense
    jagged large late lean little lively lonely long loose low massive mended modest muddy narrow neat new noisy
    oak oily old orange ordinary ornate painted pale patient peculiar plain pleasant polished poor precious pretty
    proud quaint quiet ragged rare red reliable repaired restless rotten rough round rusty salty scarlet scratched
    sharp shiny short silent simple sleepy slender slow small smooth soft solid sooty sour spare splendid spotted
    square stained steep stiff stolen stout strange striped sturdy sunny swift tall tangled thick thin tidy tiny
    torn trusty ugly uneven useless velvet violet warm weathered wet white wide wild wooden worn yellow young
    """.split()
)

MOODS = tuple(
    """
    amused annoyed anxious ashamed baffled bored calm cautious cheerful confident content curious delighted doubtful
    eager embarrassed exhausted furious glad gloomy grateful hopeful hungry impatient indignant jealous merry nervous
    patient pleased puzzled relieved sceptical serious sleepy stubborn surprised suspicious thoughtful tired weary
    """.split()
)

ADVERBS = tuple(
    """
    absently abruptly awkwardly bravely briskly calmly carefully casually cautiously cheerfully clumsily coldly
    crossly dutifully eagerly earnestly easily faithfully firmly fondly frankly gently gladly gracefully grudgingly
    happily hastily heartily honourably hurriedly idly kindly lazily loudly merrily modestly nervously noisily
    patiently politely promptly proudly quickly quietly readily reluctantly sadly secretively sharply shyly silently
    sincerely slowly softly solemnly steadily sternly suddenly thoughtfully wearily willingly wisely
    """.split()
)

HANDLED = tuple(
    """
    admired adjusted altered assembled balanced bought brushed buried carried carved catalogued cleaned collected
    copied counted covered decorated delivered described designed discovered emptied engraved examined exchanged
    fastened fetched filled finished folded found gathered gilded greased guarded hauled hung inherited inspected
    kept labelled lent lifted lit locked loaded lost lowered measured mended moved noticed oiled opened ordered packed
    painted patched planed polished praised prepared printed purchased raised recovered refused remembered repaired
    replaced restored returned rinsed rolled salvaged sanded scrubbed sealed sewed sharpened shipped sketched sold
    soaked sorted stacked stained steadied stitched stored studied swapped tested tied traded trimmed tuned turned
    unpacked unrolled unwrapped varnished warmed washed weighed wound wrapped
    """.split()
)

WENT = tuple(
    """
    ambled bicycled climbed crept cycled danced dashed drifted drove fled galloped hiked hobbled hurried jogged
    limped lingered marched paced paddled plodded raced rambled rode rowed rushed sailed sauntered scrambled shuffled
    skated sneaked sprinted stepped strayed strode strolled stumbled swam toiled tramped travelled trekked trotted
    trudged waded walked wandered
    """.split()
)

SAID = tuple(
    """
    admitted agreed announced argued believed boasted claimed complained confessed declared explained feared grumbled
    guessed hinted hoped insisted joked maintained mentioned murmured muttered noted observed promised recalled
    remarked repeated replied reported shouted sighed suggested supposed suspected swore thought vowed warned whispered
    wrote
    """.split()
)

TIMES = tuple(
    """
    at dawn|at dusk|at noon|before breakfast|after supper|in the small hours|late in the evening|early in spring|
    in the middle of autumn|during the long winter|on market day|on the first warm morning|after the storm|
    before the frost|when the tide was out|once the harvest was in|soon after midnight|by candlelight|
    in the week of the fair|on the last day of the month|towards evening|through the whole summer|every other Tuesday|
    on Sundays|on a windy Thursday|one foggy morning|just before sunset|not long ago|many years later|that same night|
    the following week|from time to time|in the year of the flood|between the two wars|after the thaw|at low water|
    on the eve of the wedding|within a fortnight|during the eclipse|as the bells rang|before the snow came|
    at the end of the season|in her grandmother's day|while the kettle boiled|all afternoon|in the rain
    """.replace("\n    ", "")
    .strip()
    .split("|")
)

REASONS = tuple(
    """
    because the roof leaked|because nobody else would|because the price of coal had doubled|
    because the road was closed|for want of anything better|out of pure habit|to please an old friend|
    to settle a quarrel|in return for a favour|for the sake of the children|since the bridge was under repair|
    since the letter had never arrived|although the weather was against it|although no one had asked|
    in spite of the cold|against the advice of the council|as the custom required|as the almanac had foretold|
    so that the neighbours would stop asking|so that nothing would be wasted|in order to win a bet|
    to make room for the new stove|because the ferry ran late|because the well had dried up|
    for reasons that were never written down|to the surprise of the whole street|without a word of thanks|
    with the help of two cousins|with more courage than skill|under the eyes of the inspector|
    in memory of a lost brother|because the lamps had gone out|since the mayor had insisted|
    although the ink was still wet
    """.replace("\n    ", "")
    .strip()
    .split("|")
)

WEATHER = tuple(
    """
    a thin mist|a warm drizzle|a bitter wind|a heavy frost|a sudden hailstorm|a week of sunshine|a low red moon|
    a bank of cloud|a dry easterly breeze|a spell of thunder|the first snow|the last of the heat|a ring around the sun|
    an early thaw|a sky like pewter|a fine sea spray|a long drought|the smell of rain|a gale from the west|
    a rainbow|an eerie stillness|a carpet of dew|a swirl of leaves|a shower of sleet
    """.replace("\n    ", "")
    .strip()
    .split("|")
)

COUNTS = tuple(
    """
    two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty sixty ninety
    """.split()
)

QUALITIES = tuple(
    """
    ambition beauty boldness caution charm cleverness comfort courage craft curiosity dignity diligence discretion
    endurance fairness faith folly fortune freedom friendship generosity grace gratitude greed haste honesty hope
    humour imagination justice kindness laughter loyalty luck luxury memory mercy mischief modesty order patience
    pride prudence silence skill sorrow speed strength thrift trust truth vanity virtue wisdom wit wonder
    """.split()
)

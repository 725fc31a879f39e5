"""Names that appear in pictures. Short, so that they stay legible at 160 pixels."""

NAMES = (
    "Ann",
    "Ben",
    "Cleo",
    "Dan",
    "Eve",
    "Finn",
    "Gus",
    "Ida",
    "Jon",
    "Kim",
    "Leo",
    "Mia",
    "Ned",
    "Ola",
    "Pia",
    "Sam",
)
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
FOODS = ("fig", "plum", "pear", "kiwi", "corn", "rice", "tea", "oat", "nut", "egg", "fish", "milk")
CITIES = ("Oslo", "Rome", "Lima", "Cairo", "Bonn", "Kyiv", "Bern", "Riga", "Nice", "Bath")
CATEGORY_SETS = (NAMES, DAYS, MONTHS, FOODS, CITIES)
TITLES = ("Sales", "Visits", "Points", "Rain", "Trips", "Stock", "Votes", "Goals", "Users", "Hours")
SIGN_WORDS = (
    "OPEN", "STOP", "EXIT", "SALE", "TAXI", "CAFE", "PARK", "BANK", "HOTEL", "SHOP", "WAIT", "PUSH", "PULL", "FIRE",
    "ZOO", "BUS", "GATE", "LIFT", "MENU", "NEWS", "QUIET", "ROOM", "SLOW", "TOWN", "WEST", "EAST", "NORTH", "SOUTH",
    "MUSIC", "BOOKS", "BREAD", "FRESH", "HOT", "COLD", "DANGER", "KEEP", "LEFT", "RIGHT", "JAZZ", "VIEW",
)  # fmt: skip

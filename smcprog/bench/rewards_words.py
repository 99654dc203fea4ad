"""Words of a few kinds, to judge lists of them by."""

from __future__ import annotations

__all__ = ["KINDS"]

KINDS = {
    "animals": (
        "alligator ant antelope ape armadillo baboon badger bat bear beaver bee bird bison boar "
        "buffalo butterfly camel cat caterpillar cheetah chicken chimpanzee cobra cow coyote "
        "crab crocodile crow deer dog dolphin donkey dove duck eagle eel elephant elk falcon "
        "ferret finch fish flamingo fox frog gazelle giraffe goat goose gorilla grasshopper "
        "hamster hare hawk hedgehog hen heron hippopotamus horse hyena ibex iguana impala "
        "jackal jaguar jellyfish kangaroo koala ladybug lamb lemur leopard lion lizard llama "
        "lobster lynx magpie mole monkey moose mosquito moth mouse mule octopus opossum "
        "orangutan ostrich otter owl ox oyster panda panther parrot peacock pelican penguin pig "
        "pigeon porcupine python quail rabbit raccoon ram rat raven reindeer rhinoceros robin "
        "salamander salmon seal shark sheep shrimp skunk sloth snail snake sparrow spider squid "
        "squirrel stork swan tiger toad trout turkey turtle vulture walrus wasp weasel whale "
        "wolf wolverine wombat worm yak zebra"
    ),
    "fruits": (
        "apple apricot avocado banana blackberry blueberry cantaloupe cherry clementine coconut "
        "cranberry currant date dragonfruit durian elderberry fig gooseberry grape grapefruit "
        "guava honeydew jackfruit kiwi kumquat lemon lime lychee mandarin mango melon mulberry "
        "nectarine olive orange papaya passionfruit peach pear persimmon pineapple plum "
        "pomegranate quince raspberry strawberry tangerine tomato watermelon"
    ),
    "vegetables": (
        "artichoke arugula asparagus bean beans beet beetroot beets broccoli cabbage carrot "
        "carrots cauliflower celery chard chickpea corn cucumber eggplant endive fennel garlic "
        "kale leek leeks lentils lettuce mushroom mushrooms okra onion onions parsley parsnip "
        "pea peas pepper peppers potato potatoes pumpkin radish rhubarb rutabaga shallot "
        "spinach squash tomato tomatoes turnip turnips watercress yam zucchini"
    ),
    "colours": (
        "amber aqua azure beige black blue bronze brown burgundy cobalt copper coral crimson "
        "cyan emerald fuchsia gold gray green grey indigo ivory lavender lilac lime magenta "
        "maroon mauve mint mustard navy ochre olive orange peach pink plum purple red rose ruby "
        "rust salmon scarlet silver tan teal turquoise ultramarine violet white yellow"
    ),
    "countries": (
        "albania algeria angola argentina armenia australia austria bahrain bangladesh belarus "
        "belgium bolivia brazil bulgaria cambodia cameroon canada chad chile china colombia "
        "croatia cuba cyprus denmark ecuador egypt estonia ethiopia fiji finland france gabon "
        "georgia germany ghana greece guatemala guyana haiti honduras hungary iceland india "
        "indonesia iran iraq ireland israel italy jamaica japan jordan kenya kuwait laos latvia "
        "lebanon libya lithuania luxembourg madagascar malaysia mali malta mexico mongolia "
        "morocco mozambique myanmar namibia nepal netherlands nicaragua niger nigeria norway "
        "oman pakistan panama paraguay peru philippines poland portugal qatar romania russia "
        "rwanda senegal serbia singapore slovakia slovenia somalia spain sudan sweden "
        "switzerland syria taiwan tanzania thailand tunisia turkey uganda ukraine uruguay "
        "venezuela vietnam yemen zambia zimbabwe"
    ),
    "jobs": (
        "accountant actor actress architect artist astronaut athlete author baker banker barber "
        "biologist builder butcher carpenter cashier chef chemist cleaner clerk coach cook "
        "dancer dentist designer detective director doctor driver economist editor electrician "
        "engineer farmer firefighter fireman fisherman gardener geologist guard hairdresser "
        "hunter janitor jeweler journalist judge lawyer lecturer librarian locksmith manager "
        "mason mechanic midwife miner musician nurse optician painter paramedic pharmacist "
        "photographer physician physicist pilot plumber poet police politician porter postman "
        "principal professor programmer psychologist receptionist reporter sailor salesman "
        "scientist sculptor secretary singer soldier surgeon surveyor tailor teacher therapist "
        "tutor veterinarian waiter waitress watchmaker welder writer zookeeper zoologist"
    ),
}

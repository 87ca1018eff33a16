// Every update rule, with each of the settings that change its arithmetic.

#ifndef SYNCGRADS_TESTS_COMMON_OPTIM_EVERY_RULE_H_
#define SYNCGRADS_TESTS_COMMON_OPTIM_EVERY_RULE_H_

#include "common/update_rule.h"

namespace syncgrads {

inline const Optimizer kOptimizers[] = {
    Sgd{.learning_rate = 0.1},
    Sgd{.learning_rate = 0.1, .weight_decay = 0.01},
    Momentum{.learning_rate = 0.1},
    Momentum{.learning_rate = 0.1, .weight_decay = 0.01},
    Nesterov{.learning_rate = 0.1},
    Nesterov{.learning_rate = 0.1, .weight_decay = 0.01},
    RmsProp{},
    Adagrad{},
    Adam{},
    AdamW{},
    AdamW{.weight_decay = 0},
    Lion{.learning_rate = 0.01},
    Lion{.learning_rate = 0.01, .weight_decay = 0.1},
    Lamb{},
    Lamb{.weight_decay = 0},
    Lars{},
    Lars{.weight_decay = 0.01},
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_COMMON_OPTIM_EVERY_RULE_H_

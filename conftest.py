"""One CPU device in the tests' own processes, whatever the machine: shapes in examples do not depend on its cores."""

import jax

jax.config.update("jax_num_cpu_devices", 1)

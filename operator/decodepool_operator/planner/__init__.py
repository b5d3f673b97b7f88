"""From what is seen of a pool to what is to be done: values in, values out.

Nothing here knows Kubernetes' client, a clock or a thread. `plan.plan` is the door; the rest lies behind it.

| | |
|---|---|
| `state`, `plan` | what the planner is given and gives back; the difference between what is wanted and what is there |
| `situation` | all that follows from one moment, worked out once |
| `pools`, `resolution`, `templates` | the spec; the model's facts; what a template may not say |
| `devices`, `nodes`, `capacity` | the GPU, and where it is; a worker's plan, or why there is none |
| `census`, `troubles`, `cache_troubles` | the pods counted, and what ails them; where that is their cache |
| `missing_pods` | why there are not all workers or gateways |
| `rollout`, `autoscaling` | how many there are to be, and which go first |
| `objects/` | the pool's objects |
| `differences`, `quantities` | whether an object has to be written |
| `findings`, `conditions`, `measured`, `status` | what is told of the pool |
| `decisions` | what is told of the plan: why it does what it does |
"""

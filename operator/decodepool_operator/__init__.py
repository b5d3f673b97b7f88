"""The operator: watches DecodePools, plans each one as a pure function of what is seen, and carries the plan out.

The planner is values in and values out; nothing of it knows Kubernetes' client, a clock or a thread.

| planner | holds |
|---|---|
| `state`, `plan` | what the planner is given and gives back; the difference between what is wanted and what is there |
| `situation` | all that follows from one moment, worked out once |
| `pools`, `resolution`, `templates` | the spec; the model's facts; what a template may not say |
| `devices`, `nodes`, `capacity` | the GPU, and where it is; a worker's plan, or why there is none |
| `census`, `troubles` | the pods counted, and what ails them |
| `rollout`, `autoscaling` | how many there are to be, and which go first |
| `objects/` | the pool's objects |
| `differences`, `quantities` | whether an object has to be written |
| `findings`, `conditions`, `measured`, `status` | what is told of the pool |
| `names`, `texts`, `times` | what all of it shares, and the shell too |

| shell | holds |
|---|---|
| `__main__`, `application`, `settings` | the program and its life; what it is told |
| `logs`, `metrics`, `pool_gauges` | what it tells |
| `kinds`, `api`, `faults` | the API server: what it serves, calls to it, its refusals |
| `handlers`, `store`, `audit`, `health`, `installed` | watches, what they told, and whether they tell the truth |
| `work_queue`, `reconcile`, `observe`, `carry_out`, `events` | one look at a pool: what is seen, done and told |
| `reports`, `resolve` | what workers and gateways say; headers of models behind URLs |
| `webhook/` | a worker beside an application: `injection` is pure too |

| of their own | |
|---|---|
| `reader` | what the reader Job runs |
| `crd`, `crd_page`, `structural` | the CustomResourceDefinition and its page, written by `make golden` |
"""

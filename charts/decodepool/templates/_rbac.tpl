{{- /* What the operator may do, each with its reason. Tests hold this against what it really asks for. */ -}}

{{- /* Objects of the cluster itself. */ -}}
{{- define "decodepool.clusterRules" -}}
# whether the installed definition has every field that this operator writes
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [decodepools.decodepool.dev]
  verbs: [get]
{{- if .Values.rbac.readNodes }}
# GPU memory and product from node labels, what is allocatable, taints
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
{{- end }}
{{- if .Values.webhook.enabled }}
# its certificate into the webhook
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations]
  resourceNames: [{{ include "decodepool.fullname" . }}-sidecar]
  verbs: [get, patch]
{{- end }}
{{- end -}}

{{- /* Its own namespace: the heartbeat that proves its watches, and the webhook's certificate. */ -}}
{{- define "decodepool.ownRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, patch, update]
{{- if .Values.webhook.enabled }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "decodepool.operator" . }}-webhook]
  verbs: [get, patch, update]
{{- end }}
{{- end -}}

{{- /* Namespaces whose pools are served. */ -}}
{{- define "decodepool.poolRules" -}}
- apiGroups: [decodepool.dev]
  resources: [decodepools]
  verbs: [get, list, watch]
- apiGroups: [decodepool.dev]
  resources: [decodepools/status, decodepools/scale]
  verbs: [get, patch, update]
# children name their pool as their owner, and hold its deletion where asked to
- apiGroups: [decodepool.dev]
  resources: [decodepools/finalizers]
  verbs: [update]
# what a pool is made of
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
# workers: deletion costs before a scale-down, failed ones removed
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
# granted to each pool's gateway, and nobody grants what he has not
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
# tokens that spec.model.source.http.secretRef names, read when a header is; never listed
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

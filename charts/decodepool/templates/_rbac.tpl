{{- /* What the operator may do, each with its reason. Tests hold this against what it really asks for. */ -}}

{{- /* Objects of the cluster itself. */ -}}
{{- define "decodepool.clusterRules" -}}
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

{{- /* The certificate, in a Secret that the chart makes and uninstalling takes away. `create` with a name lets it be
applied anew where somebody deleted it, and no other. */ -}}
{{- define "decodepool.certificateRules" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "decodepool.certificate" . }}]
  verbs: [get, create, patch, update]
{{- end -}}

{{- /* Namespaces whose pools are served. */ -}}
{{- define "decodepool.poolRules" -}}
# its heartbeat, which is to come back through every watch
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "decodepool.operator" . }}]
  verbs: [get, list, watch, create, patch]
# those of other operators, to tell where one serves the same pools
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list]
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
{{- if .Values.rbac.readSecrets }}
# the Secrets that pools name: a token for the model's URL, keys to ask workers with; got by name, never listed
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [get, create, patch]
{{- end -}}

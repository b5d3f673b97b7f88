{{- /* Two operators over one pool would undo each other's work for ever, so a release that would serve what another one
serves is refused. `lookup` finds nothing in `helm template` and client-side dry runs. It lists Deployments everywhere: a
release that makes nothing at the cluster's level may be installed by somebody who has no right to, and is not checked.
What this release served before is not refused: else whoever may make a Deployment would keep it from being upgraded. */ -}}
{{- define "decodepool.guard" -}}
{{- $context := . }}
{{- $before := include "decodepool.servedBefore" . | fromJson }}
{{- $ofTheCluster := or (not .Values.watchNamespaces) .Values.webhook.enabled .Values.rbac.readNodes .Values.crds.install }}
{{- if and .Values.refuseOverlap $ofTheCluster (not $before.everywhere) }}
{{- range (lookup "apps/v1" "Deployment" "" "").items }}
{{- $labels := default dict .metadata.labels }}
{{- $isOperator := and (eq (toString (get $labels "app.kubernetes.io/name")) "decodepool") (eq (toString (get $labels "app.kubernetes.io/component")) "operator") }}
{{- $isOwn := and (eq .metadata.namespace $context.Release.Namespace) (eq (toString (get $labels "app.kubernetes.io/instance")) $context.Release.Name) }}
{{- if and $isOperator (not $isOwn) }}
{{- include "decodepool.refuseOverlap" (list $context . $before.namespaces) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* What this release's operator serves before an upgrade: JSON of `everywhere` and `namespaces`. */ -}}
{{- define "decodepool.servedBefore" -}}
{{- $served := dict "everywhere" false "namespaces" list }}
{{- $own := lookup "apps/v1" "Deployment" .Release.Namespace (printf "%s-operator" (include "decodepool.fullname" .)) }}
{{- if $own }}
{{- $namespaces := include "decodepool.servedBy" $own | fromJsonArray }}
{{- $served = dict "everywhere" (not $namespaces) "namespaces" $namespaces }}
{{- end }}
{{- toJson $served }}
{{- end -}}

{{- /* The namespaces that an operator's Deployment serves, as JSON: none is every one. */ -}}
{{- define "decodepool.servedBy" -}}
{{- $namespaces := list }}
{{- range (first .spec.template.spec.containers).env }}
{{- if and (eq .name "DECODEPOOL_NAMESPACES") .value }}
{{- $namespaces = splitList "," .value }}
{{- end }}
{{- end }}
{{- toJson $namespaces }}
{{- end -}}

{{- /* Fail where the operator of another release serves a namespace that this one would newly serve:
(list $ DEPLOYMENT BEFORE). */ -}}
{{- define "decodepool.refuseOverlap" -}}
{{- $ours := (index . 0).Values.watchNamespaces }}
{{- $other := index . 1 }}
{{- $theirs := include "decodepool.servedBy" $other | fromJsonArray }}
{{- $before := index . 2 }}
{{- $both := list }}
{{- range $ours }}
{{- if and (or (not $theirs) (has . $theirs)) (not (has . $before)) }}
{{- $both = append $both . }}
{{- end }}
{{- end }}
{{- if not $ours }}
{{- $both = default (list "every namespace") $theirs }}
{{- end }}
{{- if $both }}
{{- $name := printf "%s/%s" $other.metadata.namespace (get $other.metadata.labels "app.kubernetes.io/instance") }}
{{- fail (printf "the release %s already has an operator that serves %s, and no pool may have two: upgrade that release, give each its own watchNamespaces, or uninstall it first (pools go on serving). refuseOverlap=false installs all the same" $name (join ", " $both)) }}
{{- end }}
{{- end -}}

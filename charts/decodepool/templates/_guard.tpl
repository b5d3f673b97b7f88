{{- /* Two operators over one pool would undo each other's work for ever, so a release that would serve what another one
serves is refused. `lookup` finds nothing in `helm template` and client-side dry runs. It lists Deployments everywhere: a
release that makes nothing at the cluster's level may be installed by somebody who has no right to, and is not checked. */ -}}
{{- define "decodepool.guard" -}}
{{- $context := . }}
{{- $ofTheCluster := or (not .Values.watchNamespaces) .Values.webhook.enabled .Values.rbac.readNodes .Values.crds.install }}
{{- if and .Values.refuseOverlap $ofTheCluster }}
{{- range (lookup "apps/v1" "Deployment" "" "").items }}
{{- $labels := default dict .metadata.labels }}
{{- $isOperator := and (eq (toString (get $labels "app.kubernetes.io/name")) "decodepool") (eq (toString (get $labels "app.kubernetes.io/component")) "operator") }}
{{- $isOwn := and (eq .metadata.namespace $context.Release.Namespace) (eq (toString (get $labels "app.kubernetes.io/instance")) $context.Release.Name) }}
{{- if and $isOperator (not $isOwn) }}
{{- include "decodepool.refuseOverlap" (list $context .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Fail where the operator of another release serves a namespace of this one's: (list $ DEPLOYMENT). */ -}}
{{- define "decodepool.refuseOverlap" -}}
{{- $ours := (index . 0).Values.watchNamespaces }}
{{- $other := index . 1 }}
{{- $theirs := list }}
{{- range (first $other.spec.template.spec.containers).env }}
{{- if and (eq .name "DECODEPOOL_NAMESPACES") .value }}
{{- $theirs = splitList "," .value }}
{{- end }}
{{- end }}
{{- $both := list }}
{{- range $ours }}
{{- if or (not $theirs) (has . $theirs) }}
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

{{- define "decodepool.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "decodepool.operator" -}}
{{ include "decodepool.fullname" . }}-operator
{{- end -}}

{{- define "decodepool.certificate" -}}
{{ include "decodepool.operator" . }}-cert
{{- end -}}

{{- define "decodepool.selector" -}}
app.kubernetes.io/name: decodepool
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "decodepool.labels" -}}
{{ include "decodepool.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "decodepool.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "decodepool.operator" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* The reference of one image: (list . "operator"). */ -}}
{{- define "decodepool.image" -}}
{{- $images := (index . 0).Values.images -}}
{{- $image := index $images (index . 1) -}}
{{- if $image.digest -}}
{{- printf "%s/%s@%s" $images.registry $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s/%s:%s" $images.registry $image.repository (default $images.tag $image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* What the restricted pod security standard asks of a container. */ -}}
{{- define "decodepool.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "decodepool.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

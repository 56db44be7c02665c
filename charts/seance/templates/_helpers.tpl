{{/* Names, labels and images that several templates use. */}}

{{- define "seance.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* What every object's name begins with. Pods of a StatefulSet have labels of their names, hence the 40. */}}
{{- define "seance.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "seance.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "seance.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "seance.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "seance.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* The labels that select the pods of a component: (list . "service"). */}}
{{- define "seance.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "seance.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* An image: (list . .Values.service.image). */}}
{{- define "seance.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}

{{- define "seance.sandboxes" -}}
{{- if eq .Values.sandboxes.namespace .Release.Namespace -}}
{{- fail (printf "sandboxes.namespace is %q, which is the release's own: hostile pods and the service don't share a namespace; name another one" .Release.Namespace) -}}
{{- end -}}
{{- .Values.sandboxes.namespace -}}
{{- end -}}

{{/* The security contexts of our own pods: Pod Security "restricted". */}}
{{- define "seance.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "seance.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where pods run: (list . .Values.service). */}}
{{- define "seance.placement" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $placement := dict -}}
{{- range $root.Values.imagePullSecrets -}}
{{- $_ := set $placement "imagePullSecrets" (append ($placement.imagePullSecrets | default list) (dict "name" .)) -}}
{{- end -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" -}}
{{- with index $part $key -}}{{- $_ := set $placement $key . -}}{{- end -}}
{{- end -}}
{{- if $placement -}}{{- toYaml $placement -}}{{- end -}}
{{- end -}}

{{/* What callers inside the cluster dial. A fixed address serves where nothing resolves names. */}}
{{- define "seance.apiHost" -}}
{{- if .Values.api.service.clusterIP -}}
{{- .Values.api.service.clusterIP -}}
{{- else -}}
{{- printf "%s.%s.svc" (include "seance.fullname" .) .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{- define "seance.apiTlsSecret" -}}
{{- if eq .Values.api.tls.source "secret" -}}
{{- required "api.tls.secretName is needed when api.tls.source is \"secret\"" .Values.api.tls.secretName -}}
{{- else -}}
{{- include "seance.fullname" . }}-api-tls
{{- end -}}
{{- end -}}

{{- define "seance.tokensSecret" -}}
{{- default (printf "%s-tokens" (include "seance.fullname" .)) .Values.tokensSecret -}}
{{- end -}}
